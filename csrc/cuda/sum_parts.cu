// The entry point of sums in rank order, for NVRTC: of the parts' dtype (adam/types.hpp's code).
#include "cuda/kernels.cuh"

using namespace zbench;

extern "C" __global__ void __launch_bounds__(device_block_threads)
    zbench_sum_parts(float* out, const void* parts, int count, std::int64_t numel) {
  sum_four<Dtype(ZBENCH_GRAD)>(out, parts, count, numel);
}
