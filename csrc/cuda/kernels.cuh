// The contract on CUDA: one launch updates every task of a dtype group. The arithmetic is adam/definition.hpp itself,
// compiled with --fmad=false and IEEE division and square root, so the bits are the CPU's.
#pragma once
#include "adam/definition.hpp"
#include "adam/exact_sum.hpp"
#include "cuda/rows.hpp"

namespace zbench {
namespace {

// The row whose blocks include `block`: the last that begins at or before it.
template <class Row>
const Row& row_of(const Row* rows, int count, std::int64_t block) {
  int low = 0, high = count - 1;
  while (low < high) {
    const int middle = (low + high + 1) / 2;
    if (rows[middle].first_block <= block)
      low = middle;
    else
      high = middle - 1;
  }
  return rows[low];
}

struct Four {
  float x[4];
};

template <Dtype dtype>
Four load_four(const void* from, std::int64_t i) {
  if constexpr (dtype == Dtype::float32) {
    const float4 v = *reinterpret_cast<const float4*>(static_cast<const float*>(from) + i);
    return {{v.x, v.y, v.z, v.w}};
  } else {
    const ushort4 h = *reinterpret_cast<const ushort4*>(static_cast<const std::uint16_t*>(from) + i);
    if constexpr (dtype == Dtype::bfloat16)
      return {{from_bfloat16(h.x), from_bfloat16(h.y), from_bfloat16(h.z), from_bfloat16(h.w)}};
    else
      return {{from_float16(h.x), from_float16(h.y), from_float16(h.z), from_float16(h.w)}};
  }
}

template <Dtype dtype>
void store_four(void* to, std::int64_t i, const Four& v) {
  if constexpr (dtype == Dtype::float32) {
    *reinterpret_cast<float4*>(static_cast<float*>(to) + i) = make_float4(v.x[0], v.x[1], v.x[2], v.x[3]);
  } else if constexpr (dtype != Dtype::none) {
    ushort4 h;
    if constexpr (dtype == Dtype::bfloat16)
      h = make_ushort4(to_bfloat16(v.x[0]), to_bfloat16(v.x[1]), to_bfloat16(v.x[2]), to_bfloat16(v.x[3]));
    else
      h = make_ushort4(to_float16(v.x[0]), to_float16(v.x[1]), to_float16(v.x[2]), to_float16(v.x[3]));
    *reinterpret_cast<ushort4*>(static_cast<std::uint16_t*>(to) + i) = h;
  }
}

// The 32 random bits of element i, or of nothing where rounding is to nearest.
inline std::uint32_t random_of(const DeviceTask& task, std::int64_t i) {
  const std::uint64_t element = task.rounding_offset + static_cast<std::uint64_t>(i);
  return random_bits(static_cast<std::uint32_t>(element),
                     rounding_key(task.rounding_seed, task.step, element >> 32));
}

template <Dtype dtype>
void store_moments(const DeviceTask& task, void* to, std::int64_t i, const Four& v, bool upper) {
  if (!task.stochastic) return store_four<dtype>(to, i, v);
  if constexpr (dtype == Dtype::bfloat16) {
    std::uint16_t bits[4];
    for (int k = 0; k < 4; k++) {
      const std::uint32_t random = random_of(task, i + k);
      bits[k] = to_bfloat16(v.x[k], upper ? random >> 16 : random & 0xffffu);
    }
    auto* four = reinterpret_cast<ushort4*>(static_cast<std::uint16_t*>(to) + i);
    *four = make_ushort4(bits[0], bits[1], bits[2], bits[3]);
  }
}

template <Dtype grad_dtype, Dtype moment_dtype, Dtype out_dtype>
void update_four(const DeviceTask& task, std::int64_t i) {
  const bool amsgrad = task.from.max_exp_avg_sq != nullptr;
  Four param = load_four<Dtype::float32>(task.from.param, i), grad = load_four<grad_dtype>(task.grad, i);
  Four m = load_four<moment_dtype>(task.from.exp_avg, i), v = load_four<moment_dtype>(task.from.exp_avg_sq, i);
  Four top = amsgrad ? load_four<moment_dtype>(task.from.max_exp_avg_sq, i) : Four{};
  for (int k = 0; k < 4; k++) {
    const Element now = adam_element({param.x[k], m.x[k], v.x[k], top.x[k]}, grad.x[k], task.scalars, amsgrad);
    param.x[k] = now.param;
    m.x[k] = now.exp_avg;
    v.x[k] = now.exp_avg_sq;
    top.x[k] = now.max_exp_avg_sq;
  }
  store_four<Dtype::float32>(task.into.param, i, param);
  store_moments<moment_dtype>(task, task.into.exp_avg, i, m, false);
  store_moments<moment_dtype>(task, task.into.exp_avg_sq, i, v, true);
  if (amsgrad) store_moments<moment_dtype>(task, task.into.max_exp_avg_sq, i, top, true);
  store_four<out_dtype>(task.param_out, i, param);
}

inline void store_moment(const DeviceTask& task, void* to, Dtype dtype, std::int64_t i, float x,
                                    std::uint32_t random) {
  if (task.stochastic)
    static_cast<std::uint16_t*>(to)[i] = to_bfloat16(x, random);
  else
    store(to, dtype, i, x);
}

template <Dtype grad_dtype, Dtype moment_dtype, Dtype out_dtype>
void update_one(const DeviceTask& task, std::int64_t i) {
  const Slot &from = task.from, &into = task.into;
  const bool amsgrad = from.max_exp_avg_sq != nullptr;
  const Element old{from.param[i], load(from.exp_avg, moment_dtype, i), load(from.exp_avg_sq, moment_dtype, i),
                    amsgrad ? load(from.max_exp_avg_sq, moment_dtype, i) : 0.0f};
  const Element now = adam_element(old, load(task.grad, grad_dtype, i), task.scalars, amsgrad);
  const std::uint32_t random = task.stochastic ? random_of(task, i) : 0;
  into.param[i] = now.param;
  store_moment(task, into.exp_avg, moment_dtype, i, now.exp_avg, random & 0xffffu);
  store_moment(task, into.exp_avg_sq, moment_dtype, i, now.exp_avg_sq, random >> 16);
  if (amsgrad) store_moment(task, into.max_exp_avg_sq, moment_dtype, i, now.max_exp_avg_sq, random >> 16);
  if constexpr (out_dtype != Dtype::none) store(task.param_out, out_dtype, i, now.param);
}

// One block of the update. Every thread of it calls this.
template <Dtype grad_dtype, Dtype moment_dtype, Dtype out_dtype>
void update_block(const DeviceTask* rows, int count) {
  // A copy: a store might alias the row, which would then be read anew behind each.
  const DeviceTask task = row_of(rows, count, blockIdx.x);
  const std::int64_t begin = (static_cast<std::int64_t>(blockIdx.x) - task.first_block) * device_block_elements;
  const std::int64_t left = task.numel - begin;
  const int here = left < device_block_elements ? static_cast<int>(left) : device_block_elements;
  const int fours = task.aligned ? here / 4 : 0;
#pragma unroll 2
  for (int four = threadIdx.x; four < fours; four += device_block_threads)
    update_four<grad_dtype, moment_dtype, out_dtype>(task, begin + 4 * four);
  for (int i = 4 * fours + threadIdx.x; i < here; i += device_block_threads)
    update_one<grad_dtype, moment_dtype, out_dtype>(task, begin + i);
}

// Four elements of ((part 0 + part 1) + part 2) + ..., added in float32; parts [count][numel] follow one another, and
// numel is a multiple of 4. One pass over memory, whatever the number of parts is.
template <Dtype dtype>
void sum_four(float* out, const void* parts, int count, std::int64_t numel) {
  const std::int64_t i = 4 * (static_cast<std::int64_t>(blockIdx.x) * device_block_threads + threadIdx.x);
  if (i >= numel) return;
  Four total = load_four<dtype>(parts, i);
  for (int part = 1; part < count; part++) {
    const Four next = load_four<dtype>(parts, part * numel + i);
    for (int k = 0; k < 4; k++) total.x[k] += next.x[k];
  }
  store_four<Dtype::float32>(out, i, total);
}

// The sum of squares of the chunk at `begin`: eight neighbouring threads of a warp have one lane of the definition each.
template <Dtype dtype>
double chunk_sum(const DeviceNormTask& task, std::int64_t begin) {
  const std::int64_t mine = begin + threadIdx.x % 8;
  double lane = 0.0;
  if (begin + norm_chunk <= task.numel) {
#pragma unroll 8
    for (int i = 0; i < norm_chunk; i += 8) {
      const double x = load(task.grad, dtype, mine + i);
      lane += x * x;
    }
  } else {
    for (std::int64_t i = mine; i < task.numel; i += 8) {
      const double x = load(task.grad, dtype, i);
      lane += x * x;
    }
  }
  lane += __shfl_xor_sync(0xffffffffu, lane, 4);
  lane += __shfl_xor_sync(0xffffffffu, lane, 2);
  lane += __shfl_xor_sync(0xffffffffu, lane, 1);
  return lane;
}

struct AddToWords {
  std::uint64_t* words;
  void operator()(int word, std::uint64_t value) const {
    if (value) atomicAdd(reinterpret_cast<unsigned long long*>(words) + word, static_cast<unsigned long long>(value));
  }
};

// One block of the norm: adds the square sums of its chunks to an ExactSum's words. Every thread of it calls this.
template <Dtype dtype>
void square_sums_block(const DeviceNormTask* rows, int count, std::uint64_t* sums) {
  __shared__ std::uint64_t words[exact_words];
  for (int i = threadIdx.x; i < exact_words; i += device_norm_threads) words[i] = 0;
  __syncthreads();
  const DeviceNormTask task = row_of(rows, count, blockIdx.x);
  const std::int64_t first = (static_cast<std::int64_t>(blockIdx.x) - task.first_block) * device_norm_elements;
  for (int i = threadIdx.x / 8 * norm_chunk; i < device_norm_elements; i += device_norm_threads / 8 * norm_chunk) {
    const double sum = chunk_sum<dtype>(task, first + i);
    if (threadIdx.x % 8 == 0 && first + i < task.numel) add_exactly(sum, AddToWords{words});
  }
  __syncthreads();
  for (int i = threadIdx.x; i < exact_words; i += device_norm_threads) AddToWords{sums}(i, carried(words, i));
}

}  // namespace
}  // namespace zbench
