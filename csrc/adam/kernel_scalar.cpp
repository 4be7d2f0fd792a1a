#include "adam/scalar_kernel.hpp"
#include "adam/scalar_sums.hpp"

namespace zbench {
namespace {

void update(const Task& task, const Scalars& scalars, std::int64_t begin, std::int64_t end, bool) {
  update_elements(task, scalars, begin, end);
}

// No bound worth the name: the benchmark's streams want vectors, which every processor that is measured has.
void stream(const Task& task, std::int64_t begin, std::int64_t end) { update_elements(task, Scalars{}, begin, end); }

float read(const void* from, Dtype dtype, std::int64_t begin, std::int64_t end) {
  float sum = 0.0f;
  for (std::int64_t i = begin; i < end; i++) sum += load(from, dtype, i);
  return sum;
}

}  // namespace

const Kernels scalar_kernels{"scalar", update, square_sums_of, sum_elements, add_elements, stream, read};

}  // namespace zbench
