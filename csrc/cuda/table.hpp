// What the CUDA kernels read: rows of plain data, made on the host, copied to the device by the caller.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "adam/types.hpp"

namespace zbench {

inline constexpr int device_block_elements = 4096;  // a multiple of norm_chunk: blocks never share a chunk
inline constexpr int device_block_threads = 256;
inline constexpr int device_norm_threads = device_block_elements / norm_chunk * 8;  // eight for each chunk

// One task of a launch; blocks [first_block, next row's first_block) are its own.
struct DeviceTask {
  Slot from, into;
  const void* grad;
  void* param_out;
  std::int64_t numel, first_block;
  Scalars scalars;
  std::uint64_t rounding_seed, rounding_offset;
  std::int64_t step;
  bool stochastic, aligned;
};

struct DeviceNormTask {
  const void* grad;
  double* out;
  std::int64_t numel, first_block;
};

// Tasks that one launch can take: they have their dtypes in common.
struct DeviceGroup {
  Dtype grad_dtype, moment_dtype, out_dtype;
  std::int64_t blocks = 0;
  std::vector<DeviceTask> rows;
};

struct DeviceNormGroup {
  Dtype dtype;
  std::int64_t blocks = 0;
  std::vector<DeviceNormTask> rows;
};

std::vector<DeviceGroup> device_groups(const std::vector<Task>& tasks, double grad_scale);
std::vector<DeviceNormGroup> device_norm_groups(const std::vector<NormTask>& tasks);

}  // namespace zbench
