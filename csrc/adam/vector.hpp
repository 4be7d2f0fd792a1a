// What the vector code asks of an instruction set V, and what follows from it.
//
// V offers: width; F (floats), U (as many uint32), H (as many 16-bit numbers); load/store/stream for float, bfloat16 and
// float16; add, sub, mul, div, fma, sqrt; canonical, keep_greater, count_not_below; the roundings to 16 bits; random;
// and D8, eight doubles, with zero8, add_squares and sum8.
#pragma once
#include "adam/rounding.hpp"

namespace zbench {
namespace {

template <class V, Dtype dtype>
typename V::F load_vector(const void* from, std::int64_t i) {
  if constexpr (dtype == Dtype::float32)
    return V::load(static_cast<const float*>(from) + i);
  else if constexpr (dtype == Dtype::bfloat16)
    return V::load_bfloat16(static_cast<const std::uint16_t*>(from) + i);
  else
    return V::load_float16(static_cast<const std::uint16_t*>(from) + i);
}

}  // namespace
}  // namespace zbench
