#!/bin/sh
# Runs the measurements behind the documentation one after the other.
# Usage: tools/bench.sh short|full
# Peers have environments of their own; benchmarks/peers says how to make them. Their
# Pythons are named by PFL_PYTHON, OPACUS_PYTHON and JAX_PRIVACY_PYTHON, or are found
# in .peers/pfl, .peers/opacus and .peers/jax_privacy. Those that are not there are
# left out, and a line says so.
set -u
cd "$(dirname "$0")/.."
size=${1:?short or full}
failed=

# Prints where a peer's Python is; nothing if it is not there.
peer() {
  if [ -n "$2" ]; then echo "$2"
  elif [ -x ".peers/$1/bin/python" ]; then echo ".peers/$1/bin/python"
  fi
}

run() {
  name=$1
  shift
  echo "== python -m benchmarks.$name $*"
  began=$(date +%s)
  .venv/bin/python -m "benchmarks.$name" "$@" || failed="$failed $name"
  echo "   $(($(date +%s) - began)) s"
}

pfl=$(peer pfl "${PFL_PYTHON:-}")
opacus=$(peer opacus "${OPACUS_PYTHON:-}")
jax_privacy=$(peer jax_privacy "${JAX_PRIVACY_PYTHON:-}")
pfl=${pfl:+--pfl_python=$pfl}
opacus=${opacus:+--opacus=$opacus}
jax_privacy=${jax_privacy:+--jax_privacy=$jax_privacy}

case $size in
short)
  # The ratios of the README first. Their workloads are the documentation's; there
  # are fewer rounds, and of what has many rows only those that are compared.
  run round_time --rounds=3 ${pfl:+"$pfl"}
  run small_rounds --rounds=4 ${pfl:+"$pfl"}
  run per_example --images=16 --repeats=1 ${opacus:+"$opacus"} \
    ${jax_privacy:+"$jax_privacy"}
  run scale --rounds=3
  run mechanisms --rounds=512 --separation=85
  run noise_step --rounds=16
  run server_step --rows=none:last,tree:uta3,tree:uta10,blt:uta3 --warm_up=16 \
    --rounds=32
  run threads --rounds=2 --users=8 --sentences=32
  run one_pass --checkpoints=10 --ks=2,5,10 --sentences=32
  run runtime_memory --rounds=60
  run prepare_speed --copies=0 --sqlite_rows=0
  run quadratic
  run tail_averaging
  run training_average
  ;;
full)
  run round_time ${pfl:+"$pfl"}
  run small_rounds ${pfl:+"$pfl"}
  run per_example ${opacus:+"$opacus"} ${jax_privacy:+"$jax_privacy"}
  for name in scale mechanisms noise_step server_step threads one_pass \
    runtime_memory prepare_speed quadratic tail_averaging training_average; do
    run "$name"
  done
  ;;
*)
  echo "tools/bench.sh: $size is neither short nor full" >&2
  exit 2
  ;;
esac
if [ -n "$failed" ]; then
  echo "failed:$failed" >&2
  exit 1
fi
