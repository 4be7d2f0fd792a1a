#include "adam/scalar_kernel.hpp"
#include "adam/scalar_sums.hpp"

namespace zbench {
namespace {

std::int64_t update(const Task& task, const Scalars& scalars, std::int64_t begin, std::int64_t end, bool) {
  return update_elements(task, scalars, begin, end);
}

void sum_parts(const SumTask& task, std::int64_t begin, std::int64_t end) {
  sum_elements(task, begin, end);
  if (task.squares)
    square_sums_of({task.out, task.squares, task.numel, Dtype::float32}, begin / norm_chunk,
                   (end + norm_chunk - 1) / norm_chunk);
}

}  // namespace

const Kernels scalar_kernels{"scalar", update, square_sums_of, sum_parts, add_elements};

}  // namespace zbench
