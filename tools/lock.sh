#!/bin/sh
# Compiles requirements*.in into requirements*.lock: every package with its hashes,
# and no address of an index.
set -eu
cd "$(dirname "$0")/.."
tools=$(mktemp -d)
trap 'rm -rf "$tools"' EXIT
.venv/bin/python -m venv "$tools"
"$tools/bin/pip" install --quiet uv
for name in requirements requirements.gpu requirements.gpu-jax; do
  "$tools/bin/uv" pip compile "$name.in" --override requirements.overrides \
    --python-version 3.11 --generate-hashes --no-emit-index-url --no-annotate \
    --no-header --upgrade --quiet --output-file "$name.lock"
done
