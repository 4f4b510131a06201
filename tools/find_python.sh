#!/bin/sh
# Prints the first Python 3.11 found, or one clear sentence on what to install.
for candidate in "${PYTHON311:-}" python3.11 python3 python; do
  [ -n "$candidate" ] || continue
  if command -v "$candidate" >/dev/null 2>&1 &&
    "$candidate" -c 'import sys; sys.exit(sys.version_info[:2] != (3, 11))' 2>/dev/null; then
    command -v "$candidate"
    exit 0
  fi
done
echo "Python 3.11 is needed (TensorFlow Federated supports nothing newer) and none was found: install it, or point PYTHON311 at its executable." >&2
exit 1
