// Lists of tasks: shared out evenly over threads, whatever their sizes.
#pragma once
#include <cstdint>
#include <vector>

#include "adam/types.hpp"

namespace zbench {

// Where the elements of a list of runs stand when they are laid end to end.
class Layout {
 public:
  template <class Tasks>
  explicit Layout(const Tasks& tasks) {
    starts_.reserve(tasks.size() + 1);
    starts_.push_back(0);
    for (const auto& task : tasks) starts_.push_back(starts_.back() + task.numel);
  }

  std::int64_t total() const { return starts_.back(); }

  // At most `threads`, and few enough that each part is worth a thread.
  int parts(int threads) const;

  // Calls visit(index, begin, end) for each piece of part number `part` of `parts`. Pieces begin at multiples of
  // norm_chunk, so that alignment and chunks hold; together the parts cover every element once.
  template <class Visit>
  void visit_part(int part, int parts, const Visit& visit) const {
    const std::int64_t low = boundary(part, parts), high = boundary(part + 1, parts);
    for (std::size_t index = task_at(low); index + 1 < starts_.size() && starts_[index] <= high; index++) {
      const std::int64_t begin = inside(index, low), end = inside(index, high);
      if (begin < end) visit(index, begin, end);
    }
  }

 private:
  std::int64_t boundary(int part, int parts) const;
  std::size_t task_at(std::int64_t position) const;
  std::int64_t inside(std::size_t index, std::int64_t position) const;

  std::vector<std::int64_t> starts_;
};

// Applies one update to every task.
void update(const std::vector<Task>& tasks, double grad_scale, int threads);

// The share of one thread in such an update, for callers that bring their own threads.
void update_part(const std::vector<Task>& tasks, const Layout& layout, double grad_scale, int part, int parts);

// Adds the chunks' sums of squares to an ExactSum's words, to which other threads may add meanwhile.
void square_sums(const std::vector<NormTask>& tasks, std::int64_t* sums, int threads);
void sum_parts(const SumTask& task, int threads);
void add_cast(const AddTask& task, int threads);

// The benchmark's bounds.
void stream(const std::vector<Task>& tasks, int threads);
float read(const NormTask& task, int threads);

}  // namespace zbench
