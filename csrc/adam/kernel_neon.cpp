#include <arm_neon.h>

#include "adam/vector_kernel.hpp"
#include "adam/vector_stream.hpp"
#include "adam/vector_sums.hpp"

namespace zbench {
namespace {

struct Neon {
  static constexpr std::int64_t width = 4;
  using F = float32x4_t;
  using U = uint32x4_t;
  using H = uint16x8_t;
  struct D8 {
    float64x2_t pair[4];
  };

  static F set(float x) { return vdupq_n_f32(x); }
  template <Dtype dtype>
  static F load(const void* from, std::int64_t i) {
    if constexpr (dtype == Dtype::float32) return vld1q_f32(static_cast<const float*>(from) + i);
    const uint16x4_t half = vld1_u16(static_cast<const std::uint16_t*>(from) + i);
    if constexpr (dtype == Dtype::float16) return vcvt_f32_f16(vreinterpret_f16_u16(half));
    return vreinterpretq_f32_u32(vshll_n_u16(half, 16));
  }

  // NEON has no streaming stores; cores that gain by them find out for themselves that whole lines are written.
  static void store(float* to, F x) { vst1q_f32(to, x); }
  static void stream(float* to, F x) { vst1q_f32(to, x); }
  static void store(std::uint16_t* to, H x) { vst1q_u16(to, x); }
  static void stream(std::uint16_t* to, H x) { vst1q_u16(to, x); }
  static void fence() {}

  static F add(F a, F b) { return vaddq_f32(a, b); }
  static F sub(F a, F b) { return vsubq_f32(a, b); }
  static F mul(F a, F b) { return vmulq_f32(a, b); }
  static F div(F a, F b) { return vdivq_f32(a, b); }
  static F fma(F a, F b, F c) { return vfmaq_f32(c, a, b); }
  static F sqrt(F a) { return vsqrtq_f32(a); }

  static U is_number(F x) { return vceqq_f32(x, x); }
  static F canonical(F x) { return vbslq_f32(is_number(x), x, set(__builtin_nanf(""))); }
  static F keep_greater(F old, F now) { return vbslq_f32(vbicq_u32(is_number(now), vcleq_f32(old, now)), old, now); }

  static U bits(F x) { return vreinterpretq_u32_f32(x); }
  static U set_bits(std::uint32_t x) { return vdupq_n_u32(x); }
  static U count_from(std::uint32_t first) {
    static constexpr std::uint32_t steps[4] = {0, 1, 2, 3};
    return vaddq_u32(vdupq_n_u32(first), vld1q_u32(steps));
  }
  static U add(U a, U b) { return vaddq_u32(a, b); }
  static U multiply(U a, U b) { return vmulq_u32(a, b); }
  static U bit_and(U a, U b) { return vandq_u32(a, b); }
  static U bit_xor(U a, U b) { return veorq_u32(a, b); }
  template <int shift>
  static U shift_right(U x) {
    return vshrq_n_u32(x, shift);
  }

  static H pack_upper(U a, U b) { return vuzp2q_u16(vreinterpretq_u16_u32(a), vreinterpretq_u16_u32(b)); }
  static H to_float16(F a, F b) { return vreinterpretq_u16_f16(vcombine_f16(vcvt_f16_f32(a), vcvt_f16_f32(b))); }

  static D8 zero8() { return {{vdupq_n_f64(0), vdupq_n_f64(0), vdupq_n_f64(0), vdupq_n_f64(0)}}; }
  template <Dtype dtype>
  static D8 add_squares(D8 sum, const void* grad, std::int64_t i) {
    for (int half = 0; half < 2; half++) {
      const F x = load<dtype>(grad, i + 4 * half);
      const float64x2_t low = vcvt_f64_f32(vget_low_f32(x)), high = vcvt_high_f64_f32(x);
      sum.pair[2 * half] = vfmaq_f64(sum.pair[2 * half], low, low);
      sum.pair[2 * half + 1] = vfmaq_f64(sum.pair[2 * half + 1], high, high);
    }
    return sum;
  }
  static double sum8(const D8& lanes) {
    const float64x2_t low = vaddq_f64(lanes.pair[0], lanes.pair[2]);   // 0+4, 1+5
    const float64x2_t high = vaddq_f64(lanes.pair[1], lanes.pair[3]);  // 2+6, 3+7
    const float64x2_t pairs = vaddq_f64(low, high);
    return vgetq_lane_f64(pairs, 0) + vgetq_lane_f64(pairs, 1);
  }
};

}  // namespace

const Kernels neon_kernels{"neon", update<Pair<Neon>>, square_sums<Neon>, sum_parts<Pair<Neon>>, add_cast<Pair<Neon>>,
                              stream<Pair<Neon>>, read<Pair<Neon>>};

}  // namespace zbench
