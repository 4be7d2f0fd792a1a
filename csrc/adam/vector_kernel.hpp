// The update on vectors V of one instruction set: the definition's operations in its order, lane by lane. What does
// not fill a vector is left to the definition itself.
#pragma once
#include "adam/scalar_kernel.hpp"
#include "adam/vector.hpp"

namespace zbench {
namespace {

// The scalars of one call, spread over vectors.
template <class V>
struct Spread {
  using F = typename V::F;
  F grad_scale, gradient_decay, parameter_decay, lerp_weight, square_weight, beta2, negative_step, root_correction2, eps;

  explicit Spread(const Scalars& s)
      : grad_scale(V::set(s.grad_scale)), gradient_decay(V::set(s.gradient_decay)),
        parameter_decay(V::set(s.parameter_decay)), lerp_weight(V::set(s.lerp_weight)),
        square_weight(V::set(s.square_weight)), beta2(V::set(s.beta2)), negative_step(V::set(s.negative_step)),
        root_correction2(V::set(s.root_correction2)), eps(V::set(s.eps)) {}
};

template <class V>
struct Lanes {
  typename V::F param, exp_avg, exp_avg_sq, max_exp_avg_sq;
};

template <class V>
Lanes<V> adam_lanes(const Lanes<V>& old, typename V::F grad, const Spread<V>& s, const Scalars& flags, bool amsgrad) {
  using F = typename V::F;
  F g = V::mul(grad, s.grad_scale);
  if (flags.gradient_decay != 0.0f) g = V::fma(old.param, s.gradient_decay, g);
  const F m = V::fma(s.lerp_weight, V::sub(g, old.exp_avg), flags.lerp_from_gradient ? g : old.exp_avg);
  const F v = V::fma(V::mul(s.square_weight, g), g, V::mul(old.exp_avg_sq, s.beta2));
  const F top = amsgrad ? V::keep_greater(old.max_exp_avg_sq, v) : v;
  const F denominator = V::add(V::div(V::sqrt(top), s.root_correction2), s.eps);
  const F p = V::add(V::mul(old.param, s.parameter_decay), V::div(V::mul(s.negative_step, m), denominator));
  return {V::canonical(p), V::canonical(m), V::canonical(v), V::canonical(top)};
}

// Where results go and in which rounding; the branches are the same for every vector of a call.
template <class V, Dtype moment_dtype>
struct Writer {
  using F = typename V::F;
  const Task& task;
  const bool stream_into, stream_out;

  void param(std::int64_t i, F x) const {
    if (stream_into)
      V::stream(task.into.param + i, x);
    else
      V::store(task.into.param + i, x);
  }

  void moment(void* to, std::int64_t i, F x, typename V::U random) const {
    if constexpr (moment_dtype == Dtype::float32) {
      if (stream_into)
        V::stream(static_cast<float*>(to) + i, x);
      else
        V::store(static_cast<float*>(to) + i, x);
    } else {
      const auto bits = task.stochastic ? V::to_bfloat16_with(x, random) : V::to_bfloat16(x);
      half(static_cast<std::uint16_t*>(to) + i, bits, stream_into);
    }
  }

  void out(std::int64_t i, F x) const {
    if (task.out_dtype == Dtype::float32) {
      if (stream_out)
        V::stream(static_cast<float*>(task.param_out) + i, x);
      else
        V::store(static_cast<float*>(task.param_out) + i, x);
    } else if (task.out_dtype != Dtype::none) {
      const auto bits = task.out_dtype == Dtype::bfloat16 ? V::to_bfloat16(x) : V::to_float16(x);
      half(static_cast<std::uint16_t*>(task.param_out) + i, bits, stream_out);
    }
  }

  static void half(std::uint16_t* to, typename V::H bits, bool stream) {
    if (stream)
      V::stream(to, bits);
    else
      V::store(to, bits);
  }
};

// All elements share the upper 32 bits of their place in the rounding stream, so one key serves.
template <class V, Dtype grad_dtype, Dtype moment_dtype>
std::int64_t update_vectors(const Task& task, const Scalars& scalars, std::int64_t begin, std::int64_t end,
                            Writer<V, moment_dtype> write) {
  const Slot& from = task.from;
  const bool amsgrad = from.max_exp_avg_sq != nullptr;
  const Spread<V> spread(scalars);
  const auto limit = V::set(nonfinite_limit(task.out_dtype));
  const std::uint64_t first = task.rounding_offset + static_cast<std::uint64_t>(begin);
  const RoundingKey key = rounding_key(task.rounding_seed, task.step, first >> 32);
  std::int64_t nonfinite = 0;
  for (std::int64_t i = begin; i < end; i += V::width) {
    Lanes<V> old{V::load(from.param + i), load_vector<V, moment_dtype>(from.exp_avg, i),
                 load_vector<V, moment_dtype>(from.exp_avg_sq, i), V::set(0.0f)};
    if (amsgrad) old.max_exp_avg_sq = load_vector<V, moment_dtype>(from.max_exp_avg_sq, i);
    const Lanes<V> now = adam_lanes<V>(old, load_vector<V, grad_dtype>(task.grad, i), spread, scalars, amsgrad);
    typename V::U random{};
    if (moment_dtype == Dtype::bfloat16 && task.stochastic)
      random = V::random(static_cast<std::uint32_t>(first + static_cast<std::uint64_t>(i - begin)), key);
    write.param(i, now.param);
    write.moment(task.into.exp_avg, i, now.exp_avg, V::lower_half(random));
    write.moment(task.into.exp_avg_sq, i, now.exp_avg_sq, V::upper_half(random));
    if (amsgrad) write.moment(task.into.max_exp_avg_sq, i, now.max_exp_avg_sq, V::upper_half(random));
    write.out(i, now.param);
    nonfinite += V::count_not_below(now.param, limit);
  }
  return nonfinite;
}

template <class V, Dtype grad_dtype>
std::int64_t update_with_moments(const Task& task, const Scalars& scalars, std::int64_t begin, std::int64_t end,
                                 bool stream_into, bool stream_out) {
  if (task.moment_dtype == Dtype::float32)
    return update_vectors<V, grad_dtype, Dtype::float32>(task, scalars, begin, end, {task, stream_into, stream_out});
  return update_vectors<V, grad_dtype, Dtype::bfloat16>(task, scalars, begin, end, {task, stream_into, stream_out});
}

template <class V>
bool aligned(const void* data, std::int64_t begin, Dtype dtype) {
  return (reinterpret_cast<std::uintptr_t>(data) + static_cast<std::uintptr_t>(begin * bytes_of(dtype))) % 64 == 0;
}

// Streaming stores need aligned addresses; what is updated in place is in the caches already.
template <class V>
std::int64_t update_run(const Task& task, const Scalars& scalars, std::int64_t begin, std::int64_t end, bool stream) {
  const Slot& into = task.into;
  const bool stream_out = stream && aligned<V>(task.param_out, begin, task.out_dtype);
  const bool stream_into = stream && into.param != task.from.param && aligned<V>(into.param, begin, Dtype::float32) &&
                           aligned<V>(into.exp_avg, begin, task.moment_dtype) &&
                           aligned<V>(into.exp_avg_sq, begin, task.moment_dtype) &&
                           aligned<V>(into.max_exp_avg_sq, begin, task.moment_dtype);
  std::int64_t nonfinite = 0;
  switch (task.grad_dtype) {
    case Dtype::bfloat16:
      nonfinite = update_with_moments<V, Dtype::bfloat16>(task, scalars, begin, end, stream_into, stream_out);
      break;
    case Dtype::float16:
      nonfinite = update_with_moments<V, Dtype::float16>(task, scalars, begin, end, stream_into, stream_out);
      break;
    default:
      nonfinite = update_with_moments<V, Dtype::float32>(task, scalars, begin, end, stream_into, stream_out);
  }
  if (stream_into || stream_out) V::fence();
  return nonfinite;
}

template <class V>
std::int64_t update(const Task& task, const Scalars& scalars, std::int64_t begin, std::int64_t end, bool stream) {
  std::int64_t nonfinite = 0;
  while (begin < end) {
    // Elements whose place in the rounding stream shares the upper 32 bits.
    const std::uint64_t place = task.rounding_offset + static_cast<std::uint64_t>(begin);
    const std::uint64_t left = (std::uint64_t{1} << 32) - (place & 0xffffffffu);
    const bool fits = static_cast<std::uint64_t>(end - begin) <= left;
    const std::int64_t stop = fits ? end : begin + static_cast<std::int64_t>(left);
    const std::int64_t whole = begin + (stop - begin) / V::width * V::width;
    nonfinite += update_run<V>(task, scalars, begin, whole, stream);
    nonfinite += update_elements(task, scalars, whole, stop);
    begin = stop;
  }
  return nonfinite;
}

}  // namespace
}  // namespace zbench
