#include <immintrin.h>

#include "adam/vector_kernel.hpp"
#include "adam/vector_stream.hpp"
#include "adam/vector_sums.hpp"

namespace zbench {
namespace {

struct Avx2 {
  static constexpr std::int64_t width = 8;
  using F = __m256;
  using U = __m256i;
  using H = __m256i;  // sixteen 16-bit numbers
  struct D8 {
    __m256d low, high;
  };

  static F set(float x) { return _mm256_set1_ps(x); }
  template <Dtype dtype>
  static F load(const void* from, std::int64_t i) {
    if constexpr (dtype == Dtype::float32) return _mm256_loadu_ps(static_cast<const float*>(from) + i);
    const auto* at = reinterpret_cast<const __m128i*>(static_cast<const std::uint16_t*>(from) + i);
    if constexpr (dtype == Dtype::float16) return _mm256_cvtph_ps(_mm_loadu_si128(at));
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(_mm_loadu_si128(at)), 16));
  }

  static void store(float* to, F x) { _mm256_storeu_ps(to, x); }
  static void stream(float* to, F x) { _mm256_stream_ps(to, x); }
  static void store(std::uint16_t* to, H x) { _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), x); }
  static void stream(std::uint16_t* to, H x) { _mm256_stream_si256(reinterpret_cast<__m256i*>(to), x); }
  static void fence() { _mm_sfence(); }

  static F add(F a, F b) { return _mm256_add_ps(a, b); }
  static F sub(F a, F b) { return _mm256_sub_ps(a, b); }
  static F mul(F a, F b) { return _mm256_mul_ps(a, b); }
  static F div(F a, F b) { return _mm256_div_ps(a, b); }
  static F fma(F a, F b, F c) { return _mm256_fmadd_ps(a, b, c); }
  static F sqrt(F a) { return _mm256_sqrt_ps(a); }

  static F is_nan(F x) { return _mm256_cmp_ps(x, x, _CMP_UNORD_Q); }
  static F canonical(F x) { return _mm256_blendv_ps(x, set(__builtin_nanf("")), is_nan(x)); }
  static F keep_greater(F old, F now) {
    const F keep = _mm256_andnot_ps(is_nan(now), _mm256_cmp_ps(old, now, _CMP_NLE_UQ));
    return _mm256_blendv_ps(now, old, keep);
  }

  static U bits(F x) { return _mm256_castps_si256(x); }
  static U set_bits(std::uint32_t x) { return _mm256_set1_epi32(static_cast<int>(x)); }
  static U count_from(std::uint32_t first) {
    return _mm256_add_epi32(set_bits(first), _mm256_set_epi32(7, 6, 5, 4, 3, 2, 1, 0));
  }
  static U add(U a, U b) { return _mm256_add_epi32(a, b); }
  static U multiply(U a, U b) { return _mm256_mullo_epi32(a, b); }
  static U bit_and(U a, U b) { return _mm256_and_si256(a, b); }
  static U bit_xor(U a, U b) { return _mm256_xor_si256(a, b); }
  template <int shift>
  static U shift_right(U x) {
    return _mm256_srli_epi32(x, shift);
  }

  static H pack_upper(U a, U b) {
    const U mixed = _mm256_packus_epi32(shift_right<16>(a), shift_right<16>(b));  // halves of a and b in turn
    return _mm256_permute4x64_epi64(mixed, _MM_SHUFFLE(3, 1, 2, 0));
  }
  static H to_float16(F a, F b) { return _mm256_set_m128i(half(b), half(a)); }
  static __m128i half(F x) { return _mm256_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC); }

  static D8 zero8() { return {_mm256_setzero_pd(), _mm256_setzero_pd()}; }
  template <Dtype dtype>
  static D8 add_squares(D8 sum, const void* grad, std::int64_t i) {
    const F x = load<dtype>(grad, i);
    const __m256d low = _mm256_cvtps_pd(_mm256_castps256_ps128(x));
    const __m256d high = _mm256_cvtps_pd(_mm256_extractf128_ps(x, 1));
    return {_mm256_fmadd_pd(low, low, sum.low), _mm256_fmadd_pd(high, high, sum.high)};
  }
  static double sum8(D8 lanes) {
    alignas(32) double lane[4];
    _mm256_store_pd(lane, _mm256_add_pd(lanes.low, lanes.high));
    return (lane[0] + lane[2]) + (lane[1] + lane[3]);
  }
};

}  // namespace

const Kernels avx2_kernels{"avx2", update<Pair<Avx2>>, square_sums<Avx2>, sum_parts<Pair<Avx2>>, add_cast<Pair<Avx2>>,
                              stream<Pair<Avx2>>, read<Pair<Avx2>>};

}  // namespace zbench
