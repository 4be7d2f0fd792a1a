#include <immintrin.h>

#include "adam/vector_kernel.hpp"
#include "adam/vector_sums.hpp"

namespace zbench {
namespace {

struct Avx2 {
  static constexpr std::int64_t width = 8;
  using F = __m256;
  using U = __m256i;
  using H = __m128i;  // eight 16-bit numbers
  struct D8 {
    __m256d low, high;
  };

  static F set(float x) { return _mm256_set1_ps(x); }
  static F load(const float* from) { return _mm256_loadu_ps(from); }
  static F load_bfloat16(const std::uint16_t* from) {
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(load_half(from)), 16));
  }
  static F load_float16(const std::uint16_t* from) { return _mm256_cvtph_ps(load_half(from)); }
  static H load_half(const std::uint16_t* from) { return _mm_loadu_si128(reinterpret_cast<const __m128i*>(from)); }

  static void store(float* to, F x) { _mm256_storeu_ps(to, x); }
  static void stream(float* to, F x) { _mm256_stream_ps(to, x); }
  static void store(std::uint16_t* to, H x) { _mm_storeu_si128(reinterpret_cast<__m128i*>(to), x); }
  static void stream(std::uint16_t* to, H x) { _mm_stream_si128(reinterpret_cast<__m128i*>(to), x); }
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
  static std::int64_t count_not_below(F x, F limit) {
    const F magnitude = _mm256_andnot_ps(set(-0.0f), x);
    return __builtin_popcount(static_cast<unsigned>(_mm256_movemask_ps(_mm256_cmp_ps(magnitude, limit, _CMP_NLT_UQ))));
  }

  static H to_bfloat16_with(F x, U random) {
    const U up = _mm256_srli_epi32(_mm256_add_epi32(_mm256_castps_si256(x), random), 16);
    const U bits = _mm256_blendv_epi8(up, _mm256_set1_epi32(0x7fc0), _mm256_castps_si256(is_nan(x)));
    return _mm_packus_epi32(_mm256_castsi256_si128(bits), _mm256_extracti128_si256(bits, 1));
  }
  static H to_bfloat16(F x) {
    const U odd = _mm256_and_si256(_mm256_srli_epi32(_mm256_castps_si256(x), 16), _mm256_set1_epi32(1));
    return to_bfloat16_with(x, _mm256_add_epi32(odd, _mm256_set1_epi32(0x7fff)));
  }
  static H to_float16(F x) { return _mm256_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC); }

  static U random(std::uint32_t first, RoundingKey key) {
    U x = _mm256_add_epi32(_mm256_set1_epi32(static_cast<int>(first)), _mm256_set_epi32(7, 6, 5, 4, 3, 2, 1, 0));
    x = _mm256_xor_si256(x, _mm256_set1_epi32(static_cast<int>(key.counter)));
    x = _mm256_mullo_epi32(fold<16>(x), _mm256_set1_epi32(0x21f0aaad));
    x = _mm256_add_epi32(fold<15>(x), _mm256_set1_epi32(static_cast<int>(key.between)));
    return fold<15>(_mm256_mullo_epi32(fold<16>(x), _mm256_set1_epi32(static_cast<int>(0xd35a2d97u))));
  }
  template <int shift>
  static U fold(U x) {
    return _mm256_xor_si256(x, _mm256_srli_epi32(x, shift));
  }
  static U lower_half(U x) { return _mm256_and_si256(x, _mm256_set1_epi32(0xffff)); }
  static U upper_half(U x) { return _mm256_srli_epi32(x, 16); }

  static D8 zero8() { return {_mm256_setzero_pd(), _mm256_setzero_pd()}; }
  template <Dtype dtype>
  static D8 add_squares(D8 sum, const void* grad, std::int64_t i) {
    F x;
    if constexpr (dtype == Dtype::float32)
      x = load(static_cast<const float*>(grad) + i);
    else if constexpr (dtype == Dtype::bfloat16)
      x = load_bfloat16(static_cast<const std::uint16_t*>(grad) + i);
    else
      x = load_float16(static_cast<const std::uint16_t*>(grad) + i);
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

const Kernels avx2_kernels{"avx2", update<Avx2>, square_sums<Avx2>, sum_parts<Avx2>, add_cast<Avx2>};

}  // namespace zbench
