#include "adam/scalar_kernel.hpp"

namespace zbench {
namespace {

std::int64_t update(const Task& task, const Scalars& scalars, std::int64_t begin, std::int64_t end, bool) {
  return update_elements(task, scalars, begin, end);
}

void square_sums(const NormTask& task, std::int64_t first, std::int64_t last) {
  for (std::int64_t chunk = first; chunk < last; chunk++) {
    const std::int64_t begin = chunk * norm_chunk, end = begin + norm_chunk;
    task.out[chunk] = square_sum(task, begin, end < task.numel ? end : task.numel);
  }
}

}  // namespace

const Kernels scalar_kernels{"scalar", update, square_sums};

}  // namespace zbench
