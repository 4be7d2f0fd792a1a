// The CUDA Adam's C interface, loaded lazily by zbench/engine/adam/cuda.py. No torch, no Python; the CUDA runtime is
// linked statically. Functions return a cudaError_t as int: 0 is success. Launches are asynchronous on `stream`.
#include <cuda_runtime.h>

#include "cuda/kernels.cuh"

#define ZBENCH_EXPORT extern "C" __attribute__((visibility("default")))

namespace zbench {
namespace {

// Makes `device` current for this library's calls and puts the caller's back.
class OnDevice {
 public:
  explicit OnDevice(int device) {
    error_ = cudaGetDevice(&previous_);
    if (error_ == cudaSuccess) error_ = cudaSetDevice(device);
  }
  ~OnDevice() {
    if (error_ == cudaSuccess) cudaSetDevice(previous_);
  }
  OnDevice(const OnDevice&) = delete;
  cudaError_t error() const { return error_; }

 private:
  int previous_ = 0;
  cudaError_t error_;
};

struct Launch {
  const DeviceTask* rows;
  int count;
  unsigned blocks;
  unsigned long long* nonfinite;
  cudaStream_t stream;
};

template <Dtype grad, Dtype moment, Dtype out>
void launch(const Launch& l) {
  update_kernel<grad, moment, out><<<l.blocks, device_block_threads, 0, l.stream>>>(l.rows, l.count, l.nonfinite);
}

template <Dtype grad, Dtype moment>
void launch_out(const Launch& l, Dtype out) {
  switch (out) {
    case Dtype::none: return launch<grad, moment, Dtype::none>(l);
    case Dtype::float32: return launch<grad, moment, Dtype::float32>(l);
    case Dtype::bfloat16: return launch<grad, moment, Dtype::bfloat16>(l);
    case Dtype::float16: return launch<grad, moment, Dtype::float16>(l);
  }
}

template <Dtype grad>
void launch_moment(const Launch& l, Dtype moment, Dtype out) {
  if (moment == Dtype::bfloat16) return launch_out<grad, Dtype::bfloat16>(l, out);
  launch_out<grad, Dtype::float32>(l, out);
}

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
  const OnDevice on(device);
  if (on.error() != cudaSuccess) return on.error();
  const Launch l{static_cast<const DeviceTask*>(rows), count, static_cast<unsigned>(blocks),
                 static_cast<unsigned long long*>(nonfinite), static_cast<cudaStream_t>(stream)};
  switch (static_cast<Dtype>(grad)) {
    case Dtype::bfloat16: launch_moment<Dtype::bfloat16>(l, static_cast<Dtype>(moment), static_cast<Dtype>(out)); break;
    case Dtype::float16: launch_moment<Dtype::float16>(l, static_cast<Dtype>(moment), static_cast<Dtype>(out)); break;
    default: launch_moment<Dtype::float32>(l, static_cast<Dtype>(moment), static_cast<Dtype>(out));
  }
  return cudaGetLastError();
}

// rows [count] DeviceNormTask lie on the device.
ZBENCH_EXPORT int zbench_cuda_square_sums(int device, const void* rows, int count, std::int64_t blocks, int dtype,
                                          void* stream) {
  const OnDevice on(device);
  if (on.error() != cudaSuccess) return on.error();
  const auto* tasks = static_cast<const DeviceNormTask*>(rows);
  const auto grid = static_cast<unsigned>(blocks);
  const auto s = static_cast<cudaStream_t>(stream);
  switch (static_cast<Dtype>(dtype)) {
    case Dtype::bfloat16: square_sums_kernel<Dtype::bfloat16><<<grid, device_norm_threads, 0, s>>>(tasks, count); break;
    case Dtype::float16: square_sums_kernel<Dtype::float16><<<grid, device_norm_threads, 0, s>>>(tasks, count); break;
    default: square_sums_kernel<Dtype::float32><<<grid, device_norm_threads, 0, s>>>(tasks, count);
  }
  return cudaGetLastError();
}
