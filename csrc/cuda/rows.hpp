// What the CUDA kernels read: rows of plain data, made on the host (cuda/table.cpp), copied to the device by the caller.
#pragma once
#include "adam/types.hpp"

namespace zbench {

inline constexpr int device_block_elements = 4096;
inline constexpr int device_block_threads = 256;

// A block adds its chunks' sums up before it adds to the words that all blocks share: few of those wait for one another.
inline constexpr int device_norm_elements = 32768;  // a multiple of norm_chunk: blocks never share a chunk
inline constexpr int device_norm_threads = 256;

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
  std::int64_t numel, first_block;
};

static_assert(sizeof(DeviceTask) == 168 && sizeof(DeviceNormTask) == 24, "host and device read the same rows");

}  // namespace zbench
