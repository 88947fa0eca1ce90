#!/bin/bash
# The real tritonserver binary out of the nvidia-pytriton wheel: Python backend, CPU only, loopback only.
# Called by peer.py with PEER_HOME, PEER_VENV, PEER_MODELS, PEER_PORT, PEER_WORKERS set. Further arguments go to tritonserver.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
site=$("$PEER_VENV/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
python=$("$PEER_VENV/bin/python" -c 'import sys; print("%d.%d" % sys.version_info[:2])')
libdir=$("$PEER_VENV/bin/python" -c 'import sysconfig; print(sysconfig.get_config_var("LIBDIR"))')
triton=$site/pytriton/tritonserver

# A backend folder of our own: the wheel keeps the backend and the stub for each Python apart.
mkdir -p "$PEER_HOME/backends"
cp -rn "$triton/backends/python" "$PEER_HOME/backends/"
cp "$triton/python_backend_stubs/$python/triton_python_backend_stub" "$PEER_HOME/backends/python/"
chmod +x "$PEER_HOME/backends/python/triton_python_backend_stub" "$triton/bin/tritonserver"

for model in mlp30 cnn32 img224; do
  mkdir -p "$PEER_HOME/repository/$model/1"
  sed "s/count: 1/count: ${PEER_WORKERS:-1}/" "$here/$model.pbtxt" > "$PEER_HOME/repository/$model/config.pbtxt"
  cp "$here/model.py" "$here/../lib/onnx_session.py" "$PEER_HOME/repository/$model/1/"
done

# The stub needs the wheel's bundled CUDA runtime (no GPU is used) and the interpreter's libpython.
# It ignores PYTHONPATH and finds its packages through the first python on PATH.
export LD_LIBRARY_PATH=$site/nvidia_pytriton.libs:$libdir
export PATH=$PEER_VENV/bin:$PATH
exec "$triton/bin/tritonserver" \
  --model-repository="$PEER_HOME/repository" --backend-directory="$PEER_HOME/backends" \
  --model-control-mode=explicit --load-model=mlp30 --load-model=cnn32 --load-model=img224 \
  --http-address=127.0.0.1 --http-port="$PEER_PORT" \
  --grpc-address=127.0.0.1 --grpc-port="$((PEER_PORT + 1))" \
  --metrics-address=127.0.0.1 --metrics-port="$((PEER_PORT + 2))" "$@"
