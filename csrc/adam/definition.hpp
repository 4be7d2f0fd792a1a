// The definition of the update: what one element becomes. Every vector path must return these bits.
//
// Included by translation units with different instruction sets, hence the unnamed namespace: a shared inline
// function could be linked from the unit whose instructions this processor lacks.
#pragma once
#include <cmath>
#include <cstdint>
#include <cstring>

#include "adam/scalars.hpp"

namespace zbench {
namespace {

struct Element {
  float param, exp_avg, exp_avg_sq, max_exp_avg_sq;
};

// torch.optim.AdamW/Adam(fused=True), operation by operation; AMSGrad where `amsgrad`.
inline Element adam_element(Element old, float grad, const Scalars& s, bool amsgrad) {
  float g = grad * s.grad_scale;
  if (s.gradient_decay != 0.0f) g = std::fma(old.param, s.gradient_decay, g);
  const float m = std::fma(s.lerp_weight, g - old.exp_avg, s.lerp_from_gradient ? g : old.exp_avg);
  const float v = std::fma(s.square_weight * g, g, old.exp_avg_sq * s.beta2);
  const bool keep_max = amsgrad && !(old.max_exp_avg_sq <= v) && v == v;
  const float top = keep_max ? old.max_exp_avg_sq : v;
  const float denominator = std::sqrt(top) / s.root_correction2 + s.eps;
  const float p = old.param * s.parameter_decay + s.negative_step * m / denominator;
  return {p, m, v, top};
}

// One bit pattern for every NaN: which operand's payload survives an operation differs between processors.
inline float canonical(float x) { return x == x ? x : __builtin_nanf(""); }

inline std::uint32_t bits_of(float x) {
  std::uint32_t bits;
  std::memcpy(&bits, &x, sizeof bits);
  return bits;
}

inline float float_of(std::uint32_t bits) {
  float x;
  std::memcpy(&x, &bits, sizeof x);
  return x;
}

// 32 random bits for an element: two rounds of multiply and xor-shift (C. Wellons' hash prospector, "lowbias32")
// with a key before and a key between. First moments use the lower half, second moments the upper.
inline std::uint32_t random_bits(std::uint32_t element, RoundingKey key) {
  std::uint32_t x = element ^ key.counter;
  x = (x ^ (x >> 16)) * 0x21f0aaadu;
  x = (x ^ (x >> 15)) + key.between;
  x = (x ^ (x >> 16)) * 0xd35a2d97u;
  return x ^ (x >> 15);
}

// ---- conversions; the NaNs that arrive here are canonical ----

inline float from_bfloat16(std::uint16_t x) { return float_of(static_cast<std::uint32_t>(x) << 16); }

inline std::uint16_t to_bfloat16(float x) {
  const std::uint32_t bits = bits_of(x);
  return x == x ? (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16 : 0x7fc0;
}

// Up with probability (dropped bits) / 2^16: `random` holds 16 bits. An exact value stays; infinities stay.
inline std::uint16_t to_bfloat16(float x, std::uint32_t random) {
  return x == x ? (bits_of(x) + random) >> 16 : 0x7fc0;
}

inline float from_float16(std::uint16_t x) {
  const std::uint32_t sign = (x & 0x8000u) << 16, exponent = (x >> 10) & 0x1fu, fraction = x & 0x3ffu;
  if (exponent == 0) return float_of(sign | bits_of(static_cast<float>(fraction) * 0x1p-24f));
  if (exponent == 31) return float_of(sign | 0x7f800000u | (fraction ? 0x400000u | fraction << 13 : 0));
  return float_of(sign | (exponent + 112) << 23 | fraction << 13);
}

inline std::uint16_t to_float16(float x) {
  const std::uint32_t sign = (bits_of(x) >> 16) & 0x8000u, magnitude = bits_of(x) & 0x7fffffffu;
  if (magnitude > 0x7f800000u) return 0x7e00;
  if (magnitude >= 0x477ff000u) return sign | 0x7c00;  // rounds to 2^16 or more: infinity
  if (magnitude < 0x38800000u)                         // subnormal: adding 0.5 rounds to a multiple of 2^-24
    return sign | (bits_of(float_of(magnitude) + 0.5f) - bits_of(0.5f));
  return sign | ((magnitude - 0x38000000u + 0xfffu + ((magnitude >> 13) & 1u)) >> 13);
}

}  // namespace
}  // namespace zbench
