// The update's entry point, for NVRTC: of the dtypes (adam/types.hpp's codes) that these macros name.
#include "cuda/kernels.cuh"

using namespace zbench;

extern "C" __global__ void __launch_bounds__(device_block_threads)
    zbench_update(const DeviceTask* rows, int count) {
  update_block<Dtype(ZBENCH_GRAD), Dtype(ZBENCH_MOMENT), Dtype(ZBENCH_OUT)>(rows, count);
}
