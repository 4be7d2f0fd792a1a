// The definition applied to a run of elements: the whole of the scalar path, the ends of the vector ones.
#pragma once
#include "adam/definition.hpp"
#include "adam/kernels.hpp"

namespace zbench {
namespace {

inline void store_moment(const Task& task, void* to, std::int64_t i, float x, std::uint32_t random) {
  if (task.stochastic)
    static_cast<std::uint16_t*>(to)[i] = to_bfloat16(x, random);
  else
    store(to, task.moment_dtype, i, x);
}

inline void update_elements(const Task& task, const Scalars& s, std::int64_t begin, std::int64_t end) {
  const Slot &from = task.from, &into = task.into;
  const bool amsgrad = from.max_exp_avg_sq != nullptr;
  RoundingKey key{};
  std::uint64_t block = ~std::uint64_t{0};
  for (std::int64_t i = begin; i < end; i++) {
    const Element old{from.param[i], load(from.exp_avg, task.moment_dtype, i),
                      load(from.exp_avg_sq, task.moment_dtype, i),
                      amsgrad ? load(from.max_exp_avg_sq, task.moment_dtype, i) : 0.0f};
    const Element now = adam_element(old, load(task.grad, task.grad_dtype, i), s, amsgrad);
    std::uint32_t random = 0;
    if (task.stochastic) {
      const std::uint64_t element = task.rounding_offset + static_cast<std::uint64_t>(i);
      if (element >> 32 != block) key = rounding_key(task.rounding_seed, task.step, block = element >> 32);
      random = random_bits(static_cast<std::uint32_t>(element), key);
    }
    into.param[i] = now.param;
    store_moment(task, into.exp_avg, i, now.exp_avg, random & 0xffffu);
    store_moment(task, into.exp_avg_sq, i, now.exp_avg_sq, random >> 16);
    if (amsgrad) store_moment(task, into.max_exp_avg_sq, i, now.max_exp_avg_sq, random >> 16);
    if (task.param_out) store(task.param_out, task.out_dtype, i, now.param);
  }
}

}  // namespace
}  // namespace zbench
