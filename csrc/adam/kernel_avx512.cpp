#include <immintrin.h>

#include "adam/vector_kernel.hpp"
#include "adam/vector_sums.hpp"

namespace zbench {
namespace {

struct Avx512 {
  static constexpr std::int64_t width = 16;
  using F = __m512;
  using U = __m512i;
  using H = __m256i;   // sixteen 16-bit numbers
  using D8 = __m512d;

  static F set(float x) { return _mm512_set1_ps(x); }
  static F load(const float* from) { return _mm512_loadu_ps(from); }
  static F load_bfloat16(const std::uint16_t* from) {
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(load_half(from)), 16));
  }
  static F load_float16(const std::uint16_t* from) { return _mm512_cvtph_ps(load_half(from)); }
  static H load_half(const std::uint16_t* from) {
    return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from));
  }

  static void store(float* to, F x) { _mm512_storeu_ps(to, x); }
  static void stream(float* to, F x) { _mm512_stream_ps(to, x); }
  static void store(std::uint16_t* to, H x) { _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), x); }
  static void stream(std::uint16_t* to, H x) { _mm256_stream_si256(reinterpret_cast<__m256i*>(to), x); }
  static void fence() { _mm_sfence(); }

  static F add(F a, F b) { return _mm512_add_ps(a, b); }
  static F sub(F a, F b) { return _mm512_sub_ps(a, b); }
  static F mul(F a, F b) { return _mm512_mul_ps(a, b); }
  static F div(F a, F b) { return _mm512_div_ps(a, b); }
  static F fma(F a, F b, F c) { return _mm512_fmadd_ps(a, b, c); }
  static F sqrt(F a) { return _mm512_sqrt_ps(a); }

  static __mmask16 is_nan(F x) { return _mm512_cmp_ps_mask(x, x, _CMP_UNORD_Q); }
  static F canonical(F x) { return _mm512_mask_mov_ps(x, is_nan(x), set(__builtin_nanf(""))); }
  static F keep_greater(F old, F now) {
    const __mmask16 keep = _mm512_cmp_ps_mask(old, now, _CMP_NLE_UQ) & static_cast<__mmask16>(~is_nan(now));
    return _mm512_mask_mov_ps(now, keep, old);
  }
  static std::int64_t count_not_below(F x, F limit) {
    return __builtin_popcount(_mm512_cmp_ps_mask(_mm512_abs_ps(x), limit, _CMP_NLT_UQ));
  }

  static H to_bfloat16_with(F x, U random) {
    const U up = _mm512_srli_epi32(_mm512_add_epi32(_mm512_castps_si512(x), random), 16);
    return _mm512_cvtepi32_epi16(_mm512_mask_mov_epi32(up, is_nan(x), _mm512_set1_epi32(0x7fc0)));
  }
  static H to_bfloat16(F x) {
    const U odd = _mm512_and_si512(_mm512_srli_epi32(_mm512_castps_si512(x), 16), _mm512_set1_epi32(1));
    return to_bfloat16_with(x, _mm512_add_epi32(odd, _mm512_set1_epi32(0x7fff)));
  }
  static H to_float16(F x) { return _mm512_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC); }

  static U random(std::uint32_t first, RoundingKey key) {
    const U steps = _mm512_set_epi32(15, 14, 13, 12, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0);
    U x = _mm512_add_epi32(_mm512_set1_epi32(static_cast<int>(first)), steps);
    x = _mm512_xor_si512(x, _mm512_set1_epi32(static_cast<int>(key.counter)));
    x = _mm512_mullo_epi32(fold<16>(x), _mm512_set1_epi32(0x21f0aaad));
    x = _mm512_add_epi32(fold<15>(x), _mm512_set1_epi32(static_cast<int>(key.between)));
    return fold<15>(_mm512_mullo_epi32(fold<16>(x), _mm512_set1_epi32(static_cast<int>(0xd35a2d97u))));
  }
  template <int shift>
  static U fold(U x) {
    return _mm512_xor_si512(x, _mm512_srli_epi32(x, shift));
  }
  static U lower_half(U x) { return _mm512_and_si512(x, _mm512_set1_epi32(0xffff)); }
  static U upper_half(U x) { return _mm512_srli_epi32(x, 16); }

  static D8 zero8() { return _mm512_setzero_pd(); }
  template <Dtype dtype>
  static D8 add_squares(D8 sum, const void* grad, std::int64_t i) {
    __m256 x;
    if constexpr (dtype == Dtype::float32) {
      x = _mm256_loadu_ps(static_cast<const float*>(grad) + i);
    } else {
      const __m128i h = _mm_loadu_si128(reinterpret_cast<const __m128i*>(static_cast<const std::uint16_t*>(grad) + i));
      x = dtype == Dtype::float16 ? _mm256_cvtph_ps(h)
                                  : _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(h), 16));
    }
    const D8 wide = _mm512_cvtps_pd(x);
    return _mm512_fmadd_pd(wide, wide, sum);
  }
  static double sum8(D8 lanes) {
    alignas(64) double lane[8];
    _mm512_store_pd(lane, lanes);
    return ((lane[0] + lane[4]) + (lane[2] + lane[6])) + ((lane[1] + lane[5]) + (lane[3] + lane[7]));
  }
};

}  // namespace

const Kernels avx512_kernels{"avx512", update<Avx512>, square_sums<Avx512>, sum_parts<Avx512>, add_cast<Avx512>};

}  // namespace zbench
