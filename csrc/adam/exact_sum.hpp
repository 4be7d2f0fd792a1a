// The sum of non-negative doubles, exactly: a fixed-point number as wide as all doubles together, in 64-bit words. Limb k
// counts 2^(32 k - 1074). Additions of integers are associative, so no order, partition, thread, rank or device shows in it.
// Two more words count infinities and NaNs. zbench/engine/adam/exact_sum.py rounds the sum, once.
//
// An addition adds less than 2^32 to a limb: 2^31 fit before `carried` must be called, and 2^30 carried sums fit again.
#pragma once
#include "adam/rounding.hpp"

namespace zbench {
namespace {

// Calls add(word, value) for each word that x adds to.
template <class Add>
inline void add_exactly(double x, const Add& add) {
  std::uint64_t bits;
  std::memcpy(&bits, &x, sizeof bits);
  const std::uint64_t exponent = bits >> 52 & 0x7ff, fraction = bits & 0xfffffffffffffull;
  if (exponent == 0x7ff) return add(fraction ? exact_nans : exact_infinities, std::uint64_t{1});
  const std::uint64_t normal = exponent != 0, place = exponent - normal;  // of the last bit, from 2^-1074
  const std::uint64_t mantissa = fraction | normal << 52;
  const int limb = static_cast<int>(place / 32), shift = static_cast<int>(place % 32);
  const std::uint64_t low = mantissa << shift;
  add(limb, low & 0xffffffffu);
  add(limb + 1, low >> 32);
  add(limb + 2, mantissa >> 1 >> (63 - shift));  // what the shift to the left has lost
}

// Word i after each limb has passed on all but its last 32 bits.
inline std::uint64_t carried(const std::uint64_t* words, int i) {
  if (i == 0) return words[0] & 0xffffffffu;
  if (i >= exact_limbs) return words[i];
  return (i < exact_limbs - 1 ? words[i] & 0xffffffffu : words[i]) + (words[i - 1] >> 32);
}

inline void add(ExactSum& sum, double x) {
  add_exactly(x, [&sum](int word, std::uint64_t value) { sum.words[word] += value; });
}

}  // namespace
}  // namespace zbench
