#!/bin/sh
# Write the hash-pinned locks again. Needs uv (any recent version); no host or index is written.
set -eu
cd "$(dirname "$0")"
for name in standard demo test dev; do
  uv pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-emit-index-url \
    --no-annotate --no-header --custom-compile-command 'requirements/lock.sh' "$name.in" -o "$name.txt" "$@"
done
