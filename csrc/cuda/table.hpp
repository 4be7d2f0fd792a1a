// The rows of each launch that a list of tasks needs.
#pragma once
#include <cstdint>
#include <vector>

#include "cuda/rows.hpp"

namespace zbench {

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
