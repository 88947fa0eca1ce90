#!/bin/bash
# MLServer, one process, loopback only: HTTP on PEER_PORT, gRPC on +1, metrics on +2.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
mkdir -p "$PEER_HOME/run"
cat > "$PEER_HOME/run/settings.json" <<JSON
{"host": "127.0.0.1", "http_port": $PEER_PORT, "grpc_port": $((PEER_PORT + 1)),
 "metrics_port": $((PEER_PORT + 2)), "parallel_workers": 0, "debug": false,
 "use_structured_logging": true, "logging_settings": null}
JSON
for model in mlp30 cnn32 img224; do
  mkdir -p "$PEER_HOME/run/$model"
  cat > "$PEER_HOME/run/$model/model-settings.json" <<JSON
{"name": "$model", "implementation": "runtime.OnnxModel", "parameters": {"version": "1"}}
JSON
done
export PYTHONPATH=$here:$here/../lib PATH=$PEER_VENV/bin:$PATH
cd "$PEER_HOME/run"
exec "$PEER_VENV/bin/mlserver" start .
