// A checked list of tasks that is built once and run every step.
#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "adam/types.hpp"

namespace zbench {

// Two tensors of a plan that share bytes of which at least one is written.
struct Overlap {
  std::size_t first_task, second_task;
  const char* first_name;
  const char* second_name;
};

class Plan {
 public:
  // Appends a task; returns its index. Throws std::invalid_argument for dtypes that no kernel has.
  std::size_t add(const Task& task);

  // These throw std::out_of_range for an index that was not added.
  void set_steps(std::size_t begin, std::size_t end, std::int64_t step, const Hyper& hyper);
  void set_grad(std::size_t index, const void* grad);

  // Of every task, whose square sums are added to one ExactSum's words; null: none are taken.
  void set_squares(std::int64_t* squares);

  std::optional<Overlap> find_overlap() const;
  const std::vector<Task>& tasks() const { return tasks_; }

 private:
  std::vector<Task> tasks_;
};

}  // namespace zbench
