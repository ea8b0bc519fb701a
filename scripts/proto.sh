#!/usr/bin/env bash
# Generate libs/spotwise/wire/v1 from proto/. Output is committed; `make check` fails where it differs.
set -euo pipefail
cd "$(dirname "$0")/.."
python=${PYTHON:-.venv/bin/python}
out=libs/spotwise/wire
rm -rf "$out/v1" && mkdir -p "$out/v1"
PATH="$(dirname "$python"):$PATH" "$python" -m grpc_tools.protoc -I proto --python_out="$out" --mypy_out="quiet:$out" \
  --grpc_python_out="$out" proto/spotwise/v1/*.proto
mv "$out"/spotwise/v1/* "$out/v1/" && rm -r "$out/spotwise"
find "$out/v1" -name '*_pb2_grpc.py' ! -name 'engine_*' -delete # only the engine has a gRPC service
# the files live in spotwise.wire.v1, not at the root of the import path
sed -i -E 's/^from spotwise\.v1 import/from spotwise.wire.v1 import/; s/\bspotwise\.v1\.([a-z]+_pb2)\b/spotwise.wire.v1.\1/g; s/^import spotwise\.v1\./import spotwise.wire.v1./' "$out"/v1/*.py "$out"/v1/*.pyi
: >"$out/v1/__init__.py"
