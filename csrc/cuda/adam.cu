// The CUDA Adam's C interface, loaded lazily by zbench/engine/adam/cuda.py. No torch, no Python; the CUDA runtime is
// linked statically. Functions return a cudaError_t as int: 0 is success. Launches are asynchronous on `stream`.
//
// `device` becomes the thread's current device and stays it. This runtime must not put "the previous one" back: it
// does not see what torch's runtime has set, so it would put back another. The caller does, by torch.cuda.device.
#include <cuda_runtime.h>

#include "cuda/dispatch.hpp"
#include "cuda/export.hpp"
#include "cuda/kernels.cuh"

namespace zbench {
namespace {

template <Dtype grad, Dtype moment, Dtype out>
__global__ void __launch_bounds__(device_block_threads)
    update_kernel(const DeviceTask* rows, int count, unsigned long long* nonfinite) {
  update_block<grad, moment, out>(rows, count, nonfinite);
}

template <Dtype grad>
__global__ void __launch_bounds__(device_norm_threads)
    square_sums_kernel(const DeviceNormTask* rows, int count, std::uint64_t* sums) {
  square_sums_block<grad>(rows, count, sums);
}

struct Update {
  const DeviceTask* rows;
  int count;
  unsigned blocks;
  unsigned long long* nonfinite;
  cudaStream_t stream;

  template <Dtype grad, Dtype moment, Dtype out>
  void update() const {
    update_kernel<grad, moment, out><<<blocks, device_block_threads, 0, stream>>>(rows, count, nonfinite);
  }
};

struct SquareSums {
  const DeviceNormTask* rows;
  int count;
  unsigned blocks;
  std::uint64_t* sums;
  cudaStream_t stream;

  template <Dtype grad>
  void square_sums() const {
    square_sums_kernel<grad><<<blocks, device_norm_threads, 0, stream>>>(rows, count, sums);
  }
};

}  // namespace
}  // namespace zbench

using namespace zbench;

// How many devices can be used; `*count` is 0 where an error is returned.
ZBENCH_EXPORT int zbench_cuda_device_count(int* count) {
  *count = 0;
  return cudaGetDeviceCount(count);
}

ZBENCH_EXPORT const char* zbench_cuda_error(int error) { return cudaGetErrorString(static_cast<cudaError_t>(error)); }

// rows [count] DeviceTask and nonfinite (int64 or null) lie on the device; dtypes are adam/types.hpp's codes.
ZBENCH_EXPORT int zbench_cuda_update(int device, const void* rows, int count, std::int64_t blocks, int grad,
                                     int moment, int out, void* nonfinite, void* stream) {
  if (const cudaError_t error = cudaSetDevice(device); error != cudaSuccess) return error;
  const Update run{static_cast<const DeviceTask*>(rows), count, static_cast<unsigned>(blocks),
                   static_cast<unsigned long long*>(nonfinite), static_cast<cudaStream_t>(stream)};
  dispatch_update(run, static_cast<Dtype>(grad), static_cast<Dtype>(moment), static_cast<Dtype>(out));
  return cudaGetLastError();
}

// rows [count] DeviceNormTask and sums, an ExactSum's words, lie on the device.
ZBENCH_EXPORT int zbench_cuda_square_sums(int device, const void* rows, int count, std::int64_t blocks, int dtype,
                                          void* sums, void* stream) {
  if (const cudaError_t error = cudaSetDevice(device); error != cudaSuccess) return error;
  const SquareSums run{static_cast<const DeviceNormTask*>(rows), count, static_cast<unsigned>(blocks),
                       static_cast<std::uint64_t*>(sums), static_cast<cudaStream_t>(stream)};
  dispatch_square_sums(run, static_cast<Dtype>(dtype));
  return cudaGetLastError();
}
