#!/bin/sh
# Builds the native core's stress tests with AddressSanitizer + UBSan, then with ThreadSanitizer, and runs them.
set -eu
source=$(cd "$(dirname "$0")/.." && pwd)
build=${ZBENCH_SANITIZE_BUILD:-$source/../build/sanitize}
for sanitizers in address,undefined thread; do
  folder=$build/$(echo "$sanitizers" | tr , -)
  cmake -S "$source" -B "$folder" -DZBENCH_TESTS=ON -DZBENCH_SANITIZE="$sanitizers" -DCMAKE_BUILD_TYPE=Release >/dev/null
  cmake --build "$folder" --parallel 2 | grep -iE "warning|error|Built target stress" || true
  (cd "$folder" && ctest --output-on-failure --timeout 120)
done
