// Bits of numbers: NaN, bfloat16, float16, random rounding. Part of the definition; CUDA compiles this very code.
//
// Included by translation units with different instruction sets, hence the unnamed namespace: a shared inline
// function could be linked from the unit whose instructions this processor lacks.
#pragma once
#include <cstdint>
#include <cstring>

#include "adam/types.hpp"

namespace zbench {
namespace {

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

// One bit pattern for every NaN: which operand's payload survives an operation differs between processors.
inline float canonical(float x) { return x == x ? x : float_of(0x7fc00000u); }

// ---- random bits ----

// SplitMix64's finaliser (Steele, Lea, Flood: Fast splittable pseudorandom number generators, 2014).
inline std::uint64_t mix(std::uint64_t x) {
  x += 0x9E3779B97F4A7C15ull;
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9ull;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EBull;
  return x ^ (x >> 31);
}

// Keys for elements [2^32 block, 2^32 (block + 1)) of a stream: one for the counter, one for between the rounds.
struct RoundingKey {
  std::uint32_t counter, between;
};

inline RoundingKey rounding_key(std::uint64_t seed, std::int64_t step, std::uint64_t block) {
  const std::uint64_t key = mix(mix(mix(seed) ^ static_cast<std::uint64_t>(step)) ^ block);
  return {static_cast<std::uint32_t>(key), static_cast<std::uint32_t>(key >> 32)};
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

// ---- conversions ----

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

// ---- arrays ----

inline float load(const void* from, Dtype dtype, std::int64_t i) {
  if (dtype == Dtype::float32) return static_cast<const float*>(from)[i];
  const std::uint16_t bits = static_cast<const std::uint16_t*>(from)[i];
  return dtype == Dtype::bfloat16 ? from_bfloat16(bits) : from_float16(bits);
}

inline void store(void* to, Dtype dtype, std::int64_t i, float x) {
  if (dtype == Dtype::float32)
    static_cast<float*>(to)[i] = x;
  else
    static_cast<std::uint16_t*>(to)[i] = dtype == Dtype::bfloat16 ? to_bfloat16(x) : to_float16(x);
}

}  // namespace
}  // namespace zbench
