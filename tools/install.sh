#!/bin/sh
# Makes .venv from a lock file. Usage: tools/install.sh LOCK
# Does nothing when the same lock and packaging files are installed already.
set -eu
cd "$(dirname "$0")/.."
lock=${1:-requirements.lock}
venv=.venv
stamp=$venv/.installed
wanted=$(cat "$lock" setup.cfg pyproject.toml | cksum)
if [ -x "$venv/bin/python" ] && [ "$(cat "$stamp" 2>/dev/null)" = "$wanted" ]; then
  exit 0
fi
python=$(sh tools/find_python.sh)
if ! "$venv/bin/python" -c '' 2>/dev/null; then
  rm -rf "$venv"
  "$python" -m venv "$venv"
fi
rm -f "$stamp"
echo "Installing the packages of $lock into $venv (a few minutes the first time)"
"$venv/bin/pip" install --quiet --no-deps --require-hashes --requirement "$lock"
"$venv/bin/pip" install --quiet --no-deps --no-build-isolation --editable .
printf '%s\n' "$wanted" >"$stamp"
