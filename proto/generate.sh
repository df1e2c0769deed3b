#!/bin/sh
# Regenerates the protobuf stubs of holdfast_wire/v1 and nvhcd with a protoc that is old on purpose: stubs of this generation load
# on every protobuf runtime from 3.20 to 7. The result is the same bytes on every machine.
#
#   proto/generate.sh [output folder]     default: this folder, over the committed stubs
#
# PROTO_TOOLS_PYTHON names an interpreter that has the pinned grpcio-tools; without it, a throw-away virtual environment
# is made with `python3.11` (or PROTO_PYTHON), because grpcio-tools 1.49.1 has no wheels for newer ones.
set -eu

here=$(CDPATH='' cd -- "$(dirname -- "$0")" && pwd)
out=${1:-$here}
tools=${PROTO_TOOLS_PYTHON:-}

if [ -z "$tools" ]; then
    environment=$(mktemp -d)
    trap 'rm -rf "$environment"' EXIT
    "${PROTO_PYTHON:-python3.11}" -m venv "$environment"
    "$environment/bin/python" -m pip install --quiet --disable-pip-version-check "grpcio-tools==1.49.1" "setuptools<80"
    tools=$environment/bin/python
fi

mkdir -p "$out"
out=$(CDPATH='' cd -- "$out" && pwd)
cd "$here"
"$tools" -m grpc_tools.protoc -I. "--python_out=$out" "--pyi_out=$out" \
    holdfast_wire/v1/worker.proto holdfast_wire/v1/cluster.proto holdfast_wire/v1/etcd.proto \
    holdfast_wire/v1/health.proto holdfast_wire/v1/reflection.proto holdfast_wire/v1/rpc_status.proto \
    nvhcd/nvhcd.proto
"$tools" -m grpc_tools.protoc -I. "--python_out=$out" "--pyi_out=$out" "--grpc_python_out=$out" holdfast_wire/v1/control.proto
