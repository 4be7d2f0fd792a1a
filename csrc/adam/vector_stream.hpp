// The bound of an update: its bytes, moved with next to no arithmetic. For `tools/benchmarks/adam.py` only.
#pragma once
#include "adam/vector_kernel.hpp"

namespace zbench {
namespace {

template <class V, Dtype grad_dtype, Dtype moment_dtype, Dtype out_dtype>
void stream_vectors(const Task& task, std::int64_t begin, std::int64_t end) {
  constexpr std::int64_t ahead = 2048 / bytes_of(moment_dtype);
  const Slot slot = task.from;
  const void* const grads = task.grad;
  void* const out = task.param_out;
  for (std::int64_t i = begin; i < end; i += V::width) {
    prefetch<V, Dtype::float32>(slot.param, i + ahead);
    prefetch<V, moment_dtype>(slot.exp_avg, i + ahead);
    prefetch<V, moment_dtype>(slot.exp_avg_sq, i + ahead);
    prefetch<V, grad_dtype>(grads, i + ahead);
    const auto grad = V::template load<grad_dtype>(grads, i);
    const auto param = V::add(V::template load<Dtype::float32>(slot.param, i), grad);
    V::template store<Dtype::float32>(slot.param, i, param, false);
    V::template store<moment_dtype>(slot.exp_avg, i, V::add(V::template load<moment_dtype>(slot.exp_avg, i), grad), false);
    V::template store<moment_dtype>(slot.exp_avg_sq, i, V::add(V::template load<moment_dtype>(slot.exp_avg_sq, i), grad),
                                    false);
    if constexpr (out_dtype != Dtype::none) V::template store<out_dtype>(out, i, param, true);
  }
}

template <class V, Dtype grad_dtype, Dtype out_dtype>
void stream_moments(const Task& task, std::int64_t begin, std::int64_t end) {
  if (task.moment_dtype == Dtype::float32)
    stream_vectors<V, grad_dtype, Dtype::float32, out_dtype>(task, begin, end);
  else
    stream_vectors<V, grad_dtype, Dtype::bfloat16, out_dtype>(task, begin, end);
}

// float32 gradients without param_out, or bfloat16 ones with a bfloat16 param_out; 64-byte aligned. The end that fills
// no vector is left out.
template <class V>
void stream(const Task& task, std::int64_t begin, std::int64_t end) {
  const std::int64_t whole = begin + (end - begin) / V::width * V::width;
  if (task.out_dtype == Dtype::bfloat16)
    stream_moments<V, Dtype::bfloat16, Dtype::bfloat16>(task, begin, whole);
  else
    stream_moments<V, Dtype::float32, Dtype::none>(task, begin, whole);
  V::fence();
}

// Reads elements [begin, end) of 16 bits or 32; the sum keeps the compiler from leaving that out.
template <class V, Dtype dtype>
float read_vectors(const void* from, std::int64_t begin, std::int64_t end) {
  auto sum = V::set(0.0f);
  for (std::int64_t i = begin; i + V::width <= end; i += V::width) {
    prefetch<V, dtype>(from, i + 8192 / bytes_of(dtype));
    sum = V::add(sum, V::template load<dtype>(from, i));
  }
  float lanes[V::width];
  V::template store<Dtype::float32>(lanes, 0, sum, false);
  return lanes[0];
}

template <class V>
float read(const void* from, Dtype dtype, std::int64_t begin, std::int64_t end) {
  return dtype == Dtype::float32 ? read_vectors<V, Dtype::float32>(from, begin, end)
                                 : read_vectors<V, Dtype::bfloat16>(from, begin, end);
}

}  // namespace
}  // namespace zbench
