// The norm's entry point, for NVRTC: of the gradients' dtype (adam/types.hpp's code).
#include "cuda/kernels.cuh"

using namespace zbench;

extern "C" __global__ void __launch_bounds__(device_norm_threads)
    zbench_square_sums(const DeviceNormTask* rows, int count, std::uint64_t* sums) {
  square_sums_block<Dtype(ZBENCH_GRAD)>(rows, count, sums);
}
