#!/bin/sh
# Builds the kernels' property test for 64-bit ARM and runs it under emulation: NEON's bits are the scalar path's.
# Needs a cross compiler and QEMU's user mode (Debian: g++-aarch64-linux-gnu qemu-user-static).
set -eu
source=$(cd "$(dirname "$0")/.." && pwd)
build=${ZBENCH_NEON_BUILD:-$source/../build/neon}
prefix=${ZBENCH_NEON_PREFIX:-aarch64-linux-gnu}
emulator=$(command -v qemu-aarch64-static || command -v qemu-aarch64 || true)
if [ -z "$emulator" ] || ! command -v "$prefix-g++" >/dev/null; then
  echo "neon.sh: needs $prefix-g++ and qemu-aarch64-static (Debian: g++-aarch64-linux-gnu qemu-user-static)" >&2
  exit 2
fi
cmake -S "$source" -B "$build" -DZBENCH_TESTS=ON -DCMAKE_BUILD_TYPE=Release \
  -DCMAKE_SYSTEM_NAME=Linux -DCMAKE_SYSTEM_PROCESSOR=aarch64 \
  -DCMAKE_C_COMPILER="$prefix-gcc" -DCMAKE_CXX_COMPILER="$prefix-g++" \
  "-DCMAKE_CROSSCOMPILING_EMULATOR=$emulator;-L;/usr/$prefix" >/dev/null
cmake --build "$build" --parallel 2 --target stress_kernels | grep -iE "warning|error|Built target stress" || true
cd "$build" && ctest --tests-regex kernels --verbose --timeout 600 | grep -E "kernels: ok:.* neon"
