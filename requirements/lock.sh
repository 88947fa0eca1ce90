#!/bin/sh
# Write the hash-pinned locks again. Needs uv (any recent version); no host or index is written.
set -eu
cd "$(dirname "$0")"
lock() { # file without ending, Python version, more options
  name=$1 version=$2
  shift 2
  uv pip compile --quiet --universal --python-version "$version" --generate-hashes --no-emit-index-url \
    --no-annotate --no-header "$name.in" -o "$name.txt" "$@"
}
for name in standard tensorrt-rtx demo test dev; do
  lock "$name" 3.11 "$@"
done
for name in kserve manifests model-signing nginx schemathesis tritonclient; do
  lock "judges/$name" 3.11 "$@"
done
lock judges/aics-tlog 3.12 "$@"
lock judges/tensorrt-10 3.11 "$@"
lock judges/tensorrt-11 3.11 "$@"
