#include "cuda/table.hpp"

#include <algorithm>
#include <initializer_list>

#include "adam/scalars.hpp"

namespace zbench {
namespace {

std::int64_t blocks_of(std::int64_t numel, std::int64_t size) { return (numel + size - 1) / size; }

// Four elements are moved at once: 16 bytes of float32, 8 of the 16-bit types.
bool aligned(const Task& task) {
  const auto at = [](const void* data, Dtype dtype) {
    return reinterpret_cast<std::uintptr_t>(data) % static_cast<std::uintptr_t>(4 * std::max<std::int64_t>(
                                                        bytes_of(dtype), 1)) == 0;
  };
  for (const Slot* slot : {&task.from, &task.into})
    if (!at(slot->param, Dtype::float32) || !at(slot->exp_avg, task.moment_dtype) ||
        !at(slot->exp_avg_sq, task.moment_dtype) || !at(slot->max_exp_avg_sq, task.moment_dtype))
      return false;
  return at(task.grad, task.grad_dtype) && at(task.param_out, task.out_dtype);
}

template <class Group, class Matches>
Group& group_where(std::vector<Group>& groups, const Matches& matches) {
  const auto found = std::find_if(groups.begin(), groups.end(), matches);
  return found != groups.end() ? *found : groups.emplace_back();
}

}  // namespace

std::vector<DeviceGroup> device_groups(const std::vector<Task>& tasks, double grad_scale) {
  std::vector<DeviceGroup> groups;
  for (const Task& task : tasks) {
    if (task.numel == 0) continue;
    DeviceGroup& group = group_where(groups, [&](const DeviceGroup& g) {
      return g.grad_dtype == task.grad_dtype && g.moment_dtype == task.moment_dtype && g.out_dtype == task.out_dtype;
    });
    group.grad_dtype = task.grad_dtype;
    group.moment_dtype = task.moment_dtype;
    group.out_dtype = task.out_dtype;
    group.rows.push_back({task.from, task.into, task.grad, task.param_out, task.numel, group.blocks,
                          scalars_of(task.hyper, task.step, grad_scale), task.rounding_seed, task.rounding_offset,
                          task.step, task.stochastic, aligned(task)});
    group.blocks += blocks_of(task.numel, device_block_elements);
  }
  return groups;
}

std::vector<DeviceNormGroup> device_norm_groups(const std::vector<NormTask>& tasks) {
  std::vector<DeviceNormGroup> groups;
  for (const NormTask& task : tasks) {
    if (task.numel == 0) continue;
    DeviceNormGroup& group = group_where(groups, [&](const DeviceNormGroup& g) { return g.dtype == task.dtype; });
    group.dtype = task.dtype;
    group.rows.push_back({task.grad, task.numel, group.blocks});
    group.blocks += blocks_of(task.numel, device_norm_elements);
  }
  return groups;
}

}  // namespace zbench
