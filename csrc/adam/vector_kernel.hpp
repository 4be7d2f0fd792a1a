// The update on vectors: the definition's operations in its order, lane by lane. What does not fill a vector is left to
// the definition itself.
#pragma once
#include "adam/scalar_kernel.hpp"
#include "adam/vector.hpp"

namespace zbench {
namespace {

enum class Moments { float32, nearest, stochastic };

// The scalars of one call, spread over vectors.
template <class V>
struct Spread {
  using F = typename V::F;
  F grad_scale, gradient_decay, parameter_decay, lerp_weight, square_weight, beta2, negative_step, root_correction2, eps;
  bool amsgrad, decays_gradient, lerp_from_gradient;

  Spread(const Scalars& s, bool with_amsgrad)
      : grad_scale(V::set(s.grad_scale)), gradient_decay(V::set(s.gradient_decay)),
        parameter_decay(V::set(s.parameter_decay)), lerp_weight(V::set(s.lerp_weight)),
        square_weight(V::set(s.square_weight)), beta2(V::set(s.beta2)), negative_step(V::set(s.negative_step)),
        root_correction2(V::set(s.root_correction2)), eps(V::set(s.eps)), amsgrad(with_amsgrad),
        decays_gradient(s.gradient_decay != 0.0f), lerp_from_gradient(s.lerp_from_gradient) {}
};

template <class V>
struct Lanes {
  typename V::F param, exp_avg, exp_avg_sq, max_exp_avg_sq;
};

template <class V>
inline Lanes<V> adam_lanes(const Lanes<V>& old, typename V::F grad, const Spread<V>& s) {
  using F = typename V::F;
  F g = V::mul(grad, s.grad_scale);
  if (s.decays_gradient) g = V::fma(old.param, s.gradient_decay, g);
  const F m = V::fma(s.lerp_weight, V::sub(g, old.exp_avg), s.lerp_from_gradient ? g : old.exp_avg);
  const F v = V::fma(V::mul(s.square_weight, g), g, V::mul(old.exp_avg_sq, s.beta2));
  const F top = s.amsgrad ? V::keep_greater(old.max_exp_avg_sq, v) : v;
  const F denominator = V::add(V::div(V::sqrt(top), s.root_correction2), s.eps);
  const F p = V::add(V::mul(old.param, s.parameter_decay), V::div(V::mul(s.negative_step, m), denominator));
  return {V::canonical(p), V::canonical(m), V::canonical(v), s.amsgrad ? V::canonical(top) : top};
}

template <class V, Moments moments>
inline void store_moments(void* to, std::int64_t i, typename V::F x, typename V::U random, bool stream) {
  if constexpr (moments == Moments::float32)
    V::template store<Dtype::float32>(to, i, x, stream);
  else if constexpr (moments == Moments::nearest)
    V::template store<Dtype::bfloat16>(to, i, x, stream);
  else
    V::store_half(to, i, V::to_bfloat16(x, random), stream);
}

// Which results are written past the caches.
struct Streams {
  bool into, out;
};

// Asks for the cache lines of the vector of elements at i. The processor's own prefetchers stop at every 4 KiB page.
template <class V, Dtype dtype>
inline void prefetch(const void* from, std::int64_t i) {
  const char* at = static_cast<const char*>(from) + i * bytes_of(dtype);
  for (std::int64_t line = 0; line < V::width * bytes_of(dtype); line += 64) __builtin_prefetch(at + line);
}

// A whole number of vectors, whose places in the rounding stream share their upper 32 bits, so that one key serves.
// Everything the loop needs is held by value: stores could otherwise change it, as far as the compiler knows.
template <class V, Dtype grad_dtype, Moments moments, Dtype out_dtype>
void update_vectors(const Task& task, const Scalars& scalars, std::int64_t begin, std::int64_t end,
                    const Streams streams) {
  constexpr Dtype moment_dtype = moments == Moments::float32 ? Dtype::float32 : Dtype::bfloat16;
  constexpr std::int64_t ahead = 2048 / bytes_of(moment_dtype);  // 2 KiB of moments: measured best on EPYC (Zen 5)
  const Slot from = task.from, into = task.into;
  const void* const grads = task.grad;
  void* const out = task.param_out;
  const Spread<V> spread(scalars, from.max_exp_avg_sq != nullptr);
  const std::uint64_t first = task.rounding_offset + static_cast<std::uint64_t>(begin);
  const RoundingKey key = rounding_key(task.rounding_seed, task.step, first >> 32);
  std::uint32_t element = static_cast<std::uint32_t>(first);
  for (std::int64_t i = begin; i < end; i += V::width, element += static_cast<std::uint32_t>(V::width)) {
    Lanes<V> old{V::template load<Dtype::float32>(from.param, i), V::template load<moment_dtype>(from.exp_avg, i),
                 V::template load<moment_dtype>(from.exp_avg_sq, i), V::set(0.0f)};
    prefetch<V, Dtype::float32>(from.param, i + ahead);
    prefetch<V, moment_dtype>(from.exp_avg, i + ahead);
    prefetch<V, moment_dtype>(from.exp_avg_sq, i + ahead);
    prefetch<V, grad_dtype>(grads, i + ahead);
    if (spread.amsgrad) old.max_exp_avg_sq = V::template load<moment_dtype>(from.max_exp_avg_sq, i);
    const Lanes<V> now = adam_lanes<V>(old, V::template load<grad_dtype>(grads, i), spread);
    typename V::U low{}, high{};
    if constexpr (moments == Moments::stochastic) {
      const auto random = V::random(element, key);
      low = V::lower_half(random);
      high = V::upper_half(random);
    }
    V::template store<Dtype::float32>(into.param, i, now.param, streams.into);
    store_moments<V, moments>(into.exp_avg, i, now.exp_avg, low, streams.into);
    store_moments<V, moments>(into.exp_avg_sq, i, now.exp_avg_sq, high, streams.into);
    if (spread.amsgrad) store_moments<V, moments>(into.max_exp_avg_sq, i, now.max_exp_avg_sq, high, streams.into);
    if constexpr (out_dtype != Dtype::none) V::template store<out_dtype>(out, i, now.param, streams.out);
  }
}

using UpdateVectors = void (*)(const Task&, const Scalars&, std::int64_t, std::int64_t, Streams);

template <class V, Dtype grad, Moments moments>
UpdateVectors choose_out(Dtype out) {
  switch (out) {
    case Dtype::bfloat16: return update_vectors<V, grad, moments, Dtype::bfloat16>;
    case Dtype::float16: return update_vectors<V, grad, moments, Dtype::float16>;
    case Dtype::float32: return update_vectors<V, grad, moments, Dtype::float32>;
    default: return update_vectors<V, grad, moments, Dtype::none>;
  }
}

template <class V, Dtype grad>
UpdateVectors choose_moments(const Task& task) {
  if (task.moment_dtype == Dtype::float32) return choose_out<V, grad, Moments::float32>(task.out_dtype);
  if (task.stochastic) return choose_out<V, grad, Moments::stochastic>(task.out_dtype);
  return choose_out<V, grad, Moments::nearest>(task.out_dtype);
}

template <class V>
UpdateVectors choose(const Task& task) {
  switch (task.grad_dtype) {
    case Dtype::bfloat16: return choose_moments<V, Dtype::bfloat16>(task);
    case Dtype::float16: return choose_moments<V, Dtype::float16>(task);
    default: return choose_moments<V, Dtype::float32>(task);
  }
}

inline bool aligned(const void* data, std::int64_t begin, Dtype dtype) {
  return (reinterpret_cast<std::uintptr_t>(data) + static_cast<std::uintptr_t>(begin * bytes_of(dtype))) % 64 == 0;
}

// Streaming needs aligned addresses, and is for what has not been read: in place, the lines are in the caches already.
inline Streams streams_of(const Task& task, std::int64_t begin) {
  const Slot& into = task.into;
  const Dtype moment = task.moment_dtype;
  return {into.param != task.from.param && aligned(into.param, begin, Dtype::float32) &&
              aligned(into.exp_avg, begin, moment) && aligned(into.exp_avg_sq, begin, moment) &&
              aligned(into.max_exp_avg_sq, begin, moment),
          aligned(task.param_out, begin, task.out_dtype)};
}

template <class V>
void update(const Task& task, const Scalars& scalars, std::int64_t begin, std::int64_t end, bool stream) {
  const UpdateVectors update_whole = choose<V>(task);
  while (begin < end) {
    const std::uint64_t place = task.rounding_offset + static_cast<std::uint64_t>(begin);
    const std::uint64_t left = (std::uint64_t{1} << 32) - (place & 0xffffffffu);  // to the next rounding key
    const bool fits = static_cast<std::uint64_t>(end - begin) <= left;
    const std::int64_t stop = fits ? end : begin + static_cast<std::int64_t>(left);
    const std::int64_t whole = begin + (stop - begin) / V::width * V::width;
    update_whole(task, scalars, begin, whole, stream ? streams_of(task, begin) : Streams{});
    update_elements(task, scalars, whole, stop);
    begin = stop;
  }
  if (stream) V::fence();
}

}  // namespace
}  // namespace zbench
