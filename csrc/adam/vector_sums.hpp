// The sums around the update on vectors V of an instruction set B.
#pragma once
#include "adam/scalar_sums.hpp"
#include "adam/vector.hpp"

namespace zbench {
namespace {

// Four chunks at a time: the sum of one chunk is a chain of additions, and four chains hide their latency.
template <class B, Dtype dtype>
void sum_chunks(const NormTask& task, std::int64_t first, std::int64_t count, ExactSum& sum) {
  constexpr std::int64_t together = 4;
  constexpr std::int64_t ahead = 8192 / bytes_of(dtype);  // the processor's own prefetchers stop at every 4 KiB page
  constexpr std::int64_t line = 64 / bytes_of(dtype);
  std::int64_t chunk = first;
  for (; chunk + together <= first + count; chunk += together) {
    typename B::D8 sums[together] = {B::zero8(), B::zero8(), B::zero8(), B::zero8()};
    const char* const next = static_cast<const char*>(task.grad) + (chunk * norm_chunk + ahead) * bytes_of(dtype);
    for (std::int64_t i = 0; i < norm_chunk; i += 8) {
      if (i % line == 0)
        for (std::int64_t k = 0; k < together; k++)
          __builtin_prefetch(next + (k * norm_chunk + i) * bytes_of(dtype));
      for (std::int64_t k = 0; k < together; k++)
        sums[k] = B::template add_squares<dtype>(sums[k], task.grad, (chunk + k) * norm_chunk + i);
    }
    for (std::int64_t k = 0; k < together; k++) add(sum, B::sum8(sums[k]));
  }
  for (; chunk < first + count; chunk++) {
    typename B::D8 lanes = B::zero8();
    for (std::int64_t i = 0; i < norm_chunk; i += 8)
      lanes = B::template add_squares<dtype>(lanes, task.grad, chunk * norm_chunk + i);
    add(sum, B::sum8(lanes));
  }
}

template <class B>
void square_sums(const NormTask& task, std::int64_t first, std::int64_t last, ExactSum& sum) {
  const std::int64_t whole = last * norm_chunk <= task.numel ? last : last - 1;
  switch (task.dtype) {
    case Dtype::bfloat16: sum_chunks<B, Dtype::bfloat16>(task, first, whole - first, sum); break;
    case Dtype::float16: sum_chunks<B, Dtype::float16>(task, first, whole - first, sum); break;
    default: sum_chunks<B, Dtype::float32>(task, first, whole - first, sum);
  }
  square_sums_of(task, whole, last, sum);
}

template <class V, Dtype dtype>
void sum_vectors(const SumTask& task, std::int64_t begin, std::int64_t end) {
  for (std::int64_t i = begin; i < end; i += V::width) {
    auto sum = V::template load<dtype>(task.parts[0], i);
    for (int k = 1; k < task.count; k++) sum = V::add(sum, V::template load<dtype>(task.parts[k], i));
    V::template store<Dtype::float32>(task.out, i, V::canonical(sum), false);
  }
}

template <class V>
void sum_parts(const SumTask& task, std::int64_t begin, std::int64_t end) {
  const std::int64_t whole = begin + (end - begin) / V::width * V::width;
  switch (task.dtype) {
    case Dtype::bfloat16: sum_vectors<V, Dtype::bfloat16>(task, begin, whole); break;
    case Dtype::float16: sum_vectors<V, Dtype::float16>(task, begin, whole); break;
    default: sum_vectors<V, Dtype::float32>(task, begin, whole);
  }
  sum_elements(task, whole, end);
}

template <class V, Dtype out_dtype, Dtype grad_dtype>
void add_vectors(const AddTask& task, std::int64_t begin, std::int64_t end) {
  void* const out = task.out;
  const void* const grad = task.grad;
  for (std::int64_t i = begin; i < end; i += V::width) {
    const auto sum = V::add(V::template load<out_dtype>(out, i), V::template load<grad_dtype>(grad, i));
    V::template store<out_dtype>(out, i, V::canonical(sum), false);
  }
}

template <class V, Dtype out_dtype>
void add_to(const AddTask& task, std::int64_t begin, std::int64_t end) {
  switch (task.grad_dtype) {
    case Dtype::bfloat16: return add_vectors<V, out_dtype, Dtype::bfloat16>(task, begin, end);
    case Dtype::float16: return add_vectors<V, out_dtype, Dtype::float16>(task, begin, end);
    default: return add_vectors<V, out_dtype, Dtype::float32>(task, begin, end);
  }
}

template <class V>
void add_cast(const AddTask& task, std::int64_t begin, std::int64_t end) {
  const std::int64_t whole = begin + (end - begin) / V::width * V::width;
  switch (task.out_dtype) {
    case Dtype::bfloat16: add_to<V, Dtype::bfloat16>(task, begin, whole); break;
    case Dtype::float16: add_to<V, Dtype::float16>(task, begin, whole); break;
    default: add_to<V, Dtype::float32>(task, begin, whole);
  }
  add_elements(task, whole, end);
}

}  // namespace
}  // namespace zbench
