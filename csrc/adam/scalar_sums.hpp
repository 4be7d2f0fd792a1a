// The definitions of the sums around the update.
#pragma once
#include "adam/exact_sum.hpp"
#include "adam/kernels.hpp"
#include "adam/rounding.hpp"

namespace zbench {
namespace {

// One chunk, or the shorter last one: eight lanes in double, where the square of a float is exact.
inline double square_sum(const NormTask& task, std::int64_t begin, std::int64_t end) {
  double lane[8] = {};
  for (std::int64_t i = begin; i < end; i++) {
    const double x = load(task.grad, task.dtype, i);
    lane[(i - begin) & 7] += x * x;
  }
  return ((lane[0] + lane[4]) + (lane[2] + lane[6])) + ((lane[1] + lane[5]) + (lane[3] + lane[7]));
}

inline void square_sums_of(const NormTask& task, std::int64_t first, std::int64_t last, ExactSum& sum) {
  for (std::int64_t chunk = first; chunk < last; chunk++) {
    const std::int64_t begin = chunk * norm_chunk, end = begin + norm_chunk;
    add(sum, square_sum(task, begin, end < task.numel ? end : task.numel));
  }
}

// The parts in order, in float32.
inline void sum_elements(const SumTask& task, std::int64_t begin, std::int64_t end) {
  for (std::int64_t i = begin; i < end; i++) {
    float sum = load(task.parts[0], task.dtype, i);
    for (int k = 1; k < task.count; k++) sum += load(task.parts[k], task.dtype, i);
    task.out[i] = canonical(sum);
  }
}

inline void add_elements(const AddTask& task, std::int64_t begin, std::int64_t end) {
  for (std::int64_t i = begin; i < end; i++) {
    const float sum = load(task.out, task.out_dtype, i) + load(task.grad, task.grad_dtype, i);
    store(task.out, task.out_dtype, i, canonical(sum));
  }
}

}  // namespace
}  // namespace zbench
