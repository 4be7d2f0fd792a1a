#include "adam/plan.hpp"

#include <algorithm>
#include <stdexcept>

namespace zbench {
namespace {

struct Range {
  std::uintptr_t begin, end;
  bool written;
  std::size_t task;
  const char* name;
};

void check(const Task& task) {
  if (task.grad_dtype == Dtype::none) throw std::invalid_argument("grad: expected float32, bfloat16 or float16");
  if (task.moment_dtype != Dtype::float32 && task.moment_dtype != Dtype::bfloat16)
    throw std::invalid_argument("exp_avg: expected float32 or bfloat16");
  if (task.numel > 0 && (task.param_out != nullptr) != (task.out_dtype != Dtype::none))
    throw std::invalid_argument("param_out: expected a pointer exactly where there is a dtype");
  if (task.numel < 0) throw std::invalid_argument("numel: expected at least 0");
}

void append(std::vector<Range>& ranges, const void* data, std::int64_t bytes, bool written, std::size_t task,
            const char* name) {
  const auto begin = reinterpret_cast<std::uintptr_t>(data);
  if (data && bytes > 0) ranges.push_back({begin, begin + static_cast<std::uintptr_t>(bytes), written, task, name});
}

void append_slot(std::vector<Range>& ranges, const Task& task, std::size_t index, const Slot& slot, bool written,
                 const char* const names[4]) {
  const std::int64_t moment_bytes = task.numel * bytes_of(task.moment_dtype);
  append(ranges, slot.param, task.numel * 4, written, index, names[0]);
  append(ranges, slot.exp_avg, moment_bytes, written, index, names[1]);
  append(ranges, slot.exp_avg_sq, moment_bytes, written, index, names[2]);
  append(ranges, slot.max_exp_avg_sq, moment_bytes, written, index, names[3]);
}

constexpr const char* slot_names[] = {"param", "exp_avg", "exp_avg_sq", "max_exp_avg_sq"};
constexpr const char* into_names[] = {"into.param", "into.exp_avg", "into.exp_avg_sq", "into.max_exp_avg_sq"};

}  // namespace

std::size_t Plan::add(const Task& task) {
  check(task);
  tasks_.push_back(task);
  return tasks_.size() - 1;
}

void Plan::set_steps(std::size_t begin, std::size_t end, std::int64_t step, const Hyper& hyper) {
  for (std::size_t index = begin; index < end; index++) {
    tasks_.at(index).step = step;
    tasks_[index].hyper = hyper;
  }
}

void Plan::set_squares(std::int64_t* squares) {
  for (Task& task : tasks_) task.squares = squares;
}

void Plan::set_grad(std::size_t index, const void* grad) { tasks_.at(index).grad = grad; }

std::optional<Overlap> Plan::find_overlap() const {
  std::vector<Range> ranges;
  ranges.reserve(tasks_.size() * 6);
  for (std::size_t index = 0; index < tasks_.size(); index++) {
    const Task& task = tasks_[index];
    const bool in_place = task.into.param == task.from.param;
    append_slot(ranges, task, index, task.from, in_place, slot_names);
    if (!in_place) append_slot(ranges, task, index, task.into, true, into_names);
    append(ranges, task.grad, task.numel * bytes_of(task.grad_dtype), false, index, "grad");
    append(ranges, task.param_out, task.numel * bytes_of(task.out_dtype), true, index, "param_out");
  }
  std::sort(ranges.begin(), ranges.end(), [](const Range& a, const Range& b) { return a.begin < b.begin; });
  const Range* furthest = nullptr;          // the range so far that reaches furthest, of any kind
  const Range* furthest_written = nullptr;  // and of those that are written
  for (const Range& range : ranges) {
    const Range* other = range.written ? furthest : furthest_written;
    if (other && range.begin < other->end) return Overlap{other->task, range.task, other->name, range.name};
    if (!furthest || range.end > furthest->end) furthest = &range;
    if (range.written && (!furthest_written || range.end > furthest_written->end)) furthest_written = &range;
  }
  return std::nullopt;
}

}  // namespace zbench
