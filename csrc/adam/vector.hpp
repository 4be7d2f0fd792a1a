// Vectors for the kernels: pairs of an instruction set's own, so that 16-bit numbers too fill whole registers.
//
// An instruction set B offers: width; F (floats), U (as many uint32), H (twice as many 16-bit numbers), D8 (eight
// doubles); loads and stores, set, add, sub, mul, div, fma, sqrt; canonical (NaN), keep_greater (AMSGrad's maximum);
// bits, pack_upper (the upper halves of two U), to_float16; integer operations for rounding and random bits; zero8,
// add_squares and sum8.
#pragma once
#include "adam/rounding.hpp"

namespace zbench {
namespace {

template <class B>
struct Pair {
  static constexpr std::int64_t width = 2 * B::width;
  struct F {
    typename B::F a, b;
  };
  struct U {
    typename B::U a, b;
  };
  using H = typename B::H;

  static F set(float x) { return {B::set(x), B::set(x)}; }
  template <Dtype dtype>
  static F load(const void* from, std::int64_t i) {
    return {B::template load<dtype>(from, i), B::template load<dtype>(from, i + B::width)};
  }

  static F add(F x, F y) { return {B::add(x.a, y.a), B::add(x.b, y.b)}; }
  static F sub(F x, F y) { return {B::sub(x.a, y.a), B::sub(x.b, y.b)}; }
  static F mul(F x, F y) { return {B::mul(x.a, y.a), B::mul(x.b, y.b)}; }
  static F div(F x, F y) { return {B::div(x.a, y.a), B::div(x.b, y.b)}; }
  static F fma(F x, F y, F z) { return {B::fma(x.a, y.a, z.a), B::fma(x.b, y.b, z.b)}; }
  static F sqrt(F x) { return {B::sqrt(x.a), B::sqrt(x.b)}; }
  static F canonical(F x) { return {B::canonical(x.a), B::canonical(x.b)}; }
  static F keep_greater(F old, F now) { return {B::keep_greater(old.a, now.a), B::keep_greater(old.b, now.b)}; }

  // To nearest even. NaNs are canonical here, so adding to their bits leaves them what they are.
  static H to_bfloat16(F x) { return B::pack_upper(nearest(B::bits(x.a)), nearest(B::bits(x.b))); }
  static H to_bfloat16(F x, U random) {
    return B::pack_upper(B::add(B::bits(x.a), random.a), B::add(B::bits(x.b), random.b));
  }
  static H to_float16(F x) { return B::to_float16(x.a, x.b); }

  // random_bits of the elements first, first + 1, ...
  static U random(std::uint32_t first, RoundingKey key) {
    return {random_vector(first, key), random_vector(first + static_cast<std::uint32_t>(B::width), key)};
  }
  static U lower_half(U x) { return {B::bit_and(x.a, B::set_bits(0xffff)), B::bit_and(x.b, B::set_bits(0xffff))}; }
  static U upper_half(U x) { return {B::template shift_right<16>(x.a), B::template shift_right<16>(x.b)}; }

  template <Dtype dtype>
  static void store(void* to, std::int64_t i, F x, bool stream) {
    if constexpr (dtype == Dtype::float32) {
      auto* at = static_cast<float*>(to) + i;
      if (stream) {
        B::stream(at, x.a);
        B::stream(at + B::width, x.b);
      } else {
        B::store(at, x.a);
        B::store(at + B::width, x.b);
      }
    } else {
      store_half(to, i, dtype == Dtype::bfloat16 ? to_bfloat16(x) : to_float16(x), stream);
    }
  }
  static void fence() { B::fence(); }
  static void store_half(void* to, std::int64_t i, H x, bool stream) {
    auto* at = static_cast<std::uint16_t*>(to) + i;
    if (stream)
      B::stream(at, x);
    else
      B::store(at, x);
  }

 private:
  static typename B::U nearest(typename B::U bits) {
    const auto odd = B::bit_and(B::template shift_right<16>(bits), B::set_bits(1));
    return B::add(bits, B::add(odd, B::set_bits(0x7fff)));
  }
  template <int shift>
  static typename B::U fold(typename B::U x) {
    return B::bit_xor(x, B::template shift_right<shift>(x));
  }
  static typename B::U random_vector(std::uint32_t first, RoundingKey key) {
    auto x = B::bit_xor(B::count_from(first), B::set_bits(key.counter));
    x = B::multiply(fold<16>(x), B::set_bits(0x21f0aaadu));
    x = B::add(fold<15>(x), B::set_bits(key.between));
    return fold<15>(B::multiply(fold<16>(x), B::set_bits(0xd35a2d97u)));
  }
};

}  // namespace
}  // namespace zbench
