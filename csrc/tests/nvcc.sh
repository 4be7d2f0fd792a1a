#!/bin/sh
# Compiles what runs on CUDA for every architecture that it supports, with PTX for later ones; warnings are errors. No GPU
# is needed. Where nvcc is not on PATH, NVIDIA's wheels from PyPI are installed into build/nvcc.
set -eu
source=$(cd "$(dirname "$0")/.." && pwd)
build=${ZBENCH_NVCC_BUILD:-$source/../build/nvcc}
architectures=${ZBENCH_NVCC_ARCHITECTURES:-75 80 86 89 90 100 120}
mkdir -p "$build"
nvcc=$(command -v nvcc || true)
if [ -z "$nvcc" ]; then
  python3 -m venv "$build/venv"
  "$build/venv/bin/python" -m pip install --quiet --disable-pip-version-check \
    nvidia-cuda-nvcc==13.0.* nvidia-cuda-crt==13.0.* nvidia-nvvm==13.0.* nvidia-cuda-runtime==13.0.* nvidia-cuda-cccl==13.0.*
  nvcc=$(find "$build/venv" -path '*/bin/nvcc' -type f | head -n 1)
fi
codes=
for number in $architectures; do
  codes="$codes -gencode arch=compute_$number,code=sm_$number"
  last=$number
done
# shellcheck disable=SC2086 - one word each
"$nvcc" -c "$source/cuda/adam.cu" "$source/cuda/yardstick.cu" -odir "$build" -I "$source" -std=c++17 -O3 -Xcompiler -fPIC \
  --fmad=false --ftz=false --prec-div=true --prec-sqrt=true -Werror all-warnings --threads 2 \
  $codes -gencode "arch=compute_$last,code=compute_$last"
echo "nvcc: ok: $("$nvcc" --version | grep -o 'release [0-9.]*'): sm_$(echo $architectures | sed 's/ / sm_/g'), PTX of $last"
