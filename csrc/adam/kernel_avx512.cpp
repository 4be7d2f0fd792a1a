#include <immintrin.h>

#include "adam/vector_kernel.hpp"
#include "adam/vector_stream.hpp"
#include "adam/vector_sums.hpp"

namespace zbench {
namespace {

struct Avx512 {
  static constexpr std::int64_t width = 16;
  using F = __m512;
  using U = __m512i;
  using H = __m512i;  // thirty-two 16-bit numbers
  using D8 = __m512d;

  static F set(float x) { return _mm512_set1_ps(x); }
  template <Dtype dtype>
  static F load(const void* from, std::int64_t i) {
    if constexpr (dtype == Dtype::float32) return _mm512_loadu_ps(static_cast<const float*>(from) + i);
    const auto* at = reinterpret_cast<const __m256i*>(static_cast<const std::uint16_t*>(from) + i);
    if constexpr (dtype == Dtype::float16) return _mm512_cvtph_ps(_mm256_loadu_si256(at));
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm256_loadu_si256(at)), 16));
  }

  static void store(float* to, F x) { _mm512_storeu_ps(to, x); }
  static void stream(float* to, F x) { _mm512_stream_ps(to, x); }
  static void store(std::uint16_t* to, H x) { _mm512_storeu_si512(to, x); }
  static void stream(std::uint16_t* to, H x) { _mm512_stream_si512(reinterpret_cast<__m512i*>(to), x); }
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

  static U bits(F x) { return _mm512_castps_si512(x); }
  static U set_bits(std::uint32_t x) { return _mm512_set1_epi32(static_cast<int>(x)); }
  static U count_from(std::uint32_t first) {
    return _mm512_add_epi32(set_bits(first), _mm512_set_epi32(15, 14, 13, 12, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0));
  }
  static U add(U a, U b) { return _mm512_add_epi32(a, b); }
  static U multiply(U a, U b) { return _mm512_mullo_epi32(a, b); }
  static U bit_and(U a, U b) { return _mm512_and_si512(a, b); }
  static U bit_xor(U a, U b) { return _mm512_xor_si512(a, b); }
  template <int shift>
  static U shift_right(U x) {
    return _mm512_srli_epi32(x, shift);
  }

  static H pack_upper(U a, U b) {
    alignas(64) static constexpr std::uint16_t odd[32] = {1,  3,  5,  7,  9,  11, 13, 15, 17, 19, 21, 23, 25, 27, 29, 31,
                                                          33, 35, 37, 39, 41, 43, 45, 47, 49, 51, 53, 55, 57, 59, 61, 63};
    return _mm512_permutex2var_epi16(a, _mm512_load_si512(odd), b);
  }
  static H to_float16(F a, F b) { return _mm512_inserti64x4(_mm512_castsi256_si512(half(a)), half(b), 1); }
  static __m256i half(F x) { return _mm512_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC); }

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

const Kernels avx512_kernels{"avx512", update<Pair<Avx512>>, square_sums<Avx512>, sum_parts<Pair<Avx512>>, add_cast<Pair<Avx512>>,
                              stream<Pair<Avx512>>, read<Pair<Avx512>>};

}  // namespace zbench
