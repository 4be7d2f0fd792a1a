// The sums around the update on vectors V.
#pragma once
#include "adam/scalar_sums.hpp"
#include "adam/vector.hpp"

namespace zbench {
namespace {

// Four chunks at a time: the sum of one chunk is a chain of additions, and four chains hide their latency.
template <class V, Dtype dtype>
void sum_chunks(const NormTask& task, std::int64_t first, std::int64_t count) {
  constexpr std::int64_t together = 4;
  std::int64_t chunk = first;
  for (; chunk + together <= first + count; chunk += together) {
    typename V::D8 sums[together] = {V::zero8(), V::zero8(), V::zero8(), V::zero8()};
    for (std::int64_t i = 0; i < norm_chunk; i += 8)
      for (std::int64_t k = 0; k < together; k++)
        sums[k] = V::template add_squares<dtype>(sums[k], task.grad, (chunk + k) * norm_chunk + i);
    for (std::int64_t k = 0; k < together; k++) task.out[chunk + k] = V::sum8(sums[k]);
  }
  for (; chunk < first + count; chunk++) {
    typename V::D8 sum = V::zero8();
    for (std::int64_t i = 0; i < norm_chunk; i += 8)
      sum = V::template add_squares<dtype>(sum, task.grad, chunk * norm_chunk + i);
    task.out[chunk] = V::sum8(sum);
  }
}

template <class V>
void square_sums(const NormTask& task, std::int64_t first, std::int64_t last) {
  const std::int64_t whole = last * norm_chunk <= task.numel ? last : last - 1;
  switch (task.dtype) {
    case Dtype::bfloat16: sum_chunks<V, Dtype::bfloat16>(task, first, whole - first); break;
    case Dtype::float16: sum_chunks<V, Dtype::float16>(task, first, whole - first); break;
    default: sum_chunks<V, Dtype::float32>(task, first, whole - first);
  }
  square_sums_of(task, whole, last);
}

template <class V, Dtype dtype>
void sum_vectors(const SumTask& task, std::int64_t begin, std::int64_t end) {
  for (std::int64_t i = begin; i < end; i += V::width) {
    auto sum = load_vector<V, dtype>(task.parts[0], i);
    for (int k = 1; k < task.count; k++) sum = V::add(sum, load_vector<V, dtype>(task.parts[k], i));
    if (task.accumulate) sum = V::add(V::load(task.out + i), sum);
    V::store(task.out + i, V::canonical(sum));
  }
}

template <class V>
void sum_run(const SumTask& task, std::int64_t begin, std::int64_t end) {
  const std::int64_t whole = begin + (end - begin) / V::width * V::width;
  switch (task.dtype) {
    case Dtype::bfloat16: sum_vectors<V, Dtype::bfloat16>(task, begin, whole); break;
    case Dtype::float16: sum_vectors<V, Dtype::float16>(task, begin, whole); break;
    default: sum_vectors<V, Dtype::float32>(task, begin, whole);
  }
  sum_elements(task, whole, end);
}

// A few chunks at a time, whose squares are then taken while they are in the nearest cache.
template <class V>
void sum_parts(const SumTask& task, std::int64_t begin, std::int64_t end) {
  if (!task.squares) return sum_run<V>(task, begin, end);
  constexpr std::int64_t block = 4 * norm_chunk;
  const NormTask norm{task.out, task.squares, task.numel, Dtype::float32};
  for (std::int64_t i = begin; i < end; i += block) {
    const std::int64_t stop = i + block < end ? i + block : end;
    sum_run<V>(task, i, stop);
    square_sums<V>(norm, i / norm_chunk, (stop + norm_chunk - 1) / norm_chunk);
  }
}

template <class V, Dtype out_dtype, Dtype grad_dtype>
void add_vectors(const AddTask& task, std::int64_t begin, std::int64_t end) {
  for (std::int64_t i = begin; i < end; i += V::width) {
    const auto sum =
        V::canonical(V::add(load_vector<V, out_dtype>(task.out, i), load_vector<V, grad_dtype>(task.grad, i)));
    if constexpr (out_dtype == Dtype::float32)
      V::store(static_cast<float*>(task.out) + i, sum);
    else if constexpr (out_dtype == Dtype::bfloat16)
      V::store(static_cast<std::uint16_t*>(task.out) + i, V::to_bfloat16(sum));
    else
      V::store(static_cast<std::uint16_t*>(task.out) + i, V::to_float16(sum));
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
