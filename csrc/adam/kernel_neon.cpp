#include <arm_neon.h>

#include "adam/vector_kernel.hpp"
#include "adam/vector_sums.hpp"

namespace zbench {
namespace {

struct Neon {
  static constexpr std::int64_t width = 4;
  using F = float32x4_t;
  using U = uint32x4_t;
  using H = uint16x4_t;
  struct D8 {
    float64x2_t pair[4];
  };

  static F set(float x) { return vdupq_n_f32(x); }
  static F load(const float* from) { return vld1q_f32(from); }
  static F load_bfloat16(const std::uint16_t* from) {
    return vreinterpretq_f32_u32(vshll_n_u16(vld1_u16(from), 16));
  }
  static F load_float16(const std::uint16_t* from) { return vcvt_f32_f16(vreinterpret_f16_u16(vld1_u16(from))); }

  // NEON has no streaming stores; whole lines are written without being read by most cores' own choice.
  static void store(float* to, F x) { vst1q_f32(to, x); }
  static void stream(float* to, F x) { vst1q_f32(to, x); }
  static void store(std::uint16_t* to, H x) { vst1_u16(to, x); }
  static void stream(std::uint16_t* to, H x) { vst1_u16(to, x); }
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
  static std::int64_t count_not_below(F x, F limit) {
    return 4 - static_cast<std::int64_t>(vaddvq_u32(vshrq_n_u32(vcltq_f32(vabsq_f32(x), limit), 31)));
  }

  static H to_bfloat16_with(F x, U random) {
    const H up = vshrn_n_u32(vaddq_u32(vreinterpretq_u32_f32(x), random), 16);
    return vbsl_u16(vmovn_u32(is_number(x)), up, vdup_n_u16(0x7fc0));
  }
  static H to_bfloat16(F x) {
    const U odd = vandq_u32(vshrq_n_u32(vreinterpretq_u32_f32(x), 16), vdupq_n_u32(1));
    return to_bfloat16_with(x, vaddq_u32(odd, vdupq_n_u32(0x7fff)));
  }
  static H to_float16(F x) { return vreinterpret_u16_f16(vcvt_f16_f32(x)); }

  static U random(std::uint32_t first, RoundingKey key) {
    const std::uint32_t steps[4] = {0, 1, 2, 3};
    U x = veorq_u32(vaddq_u32(vdupq_n_u32(first), vld1q_u32(steps)), vdupq_n_u32(key.counter));
    x = vmulq_u32(fold<16>(x), vdupq_n_u32(0x21f0aaadu));
    x = vaddq_u32(fold<15>(x), vdupq_n_u32(key.between));
    return fold<15>(vmulq_u32(fold<16>(x), vdupq_n_u32(0xd35a2d97u)));
  }
  template <int shift>
  static U fold(U x) {
    return veorq_u32(x, vshrq_n_u32(x, shift));
  }
  static U lower_half(U x) { return vandq_u32(x, vdupq_n_u32(0xffffu)); }
  static U upper_half(U x) { return vshrq_n_u32(x, 16); }

  static D8 zero8() { return {{vdupq_n_f64(0), vdupq_n_f64(0), vdupq_n_f64(0), vdupq_n_f64(0)}}; }
  template <Dtype dtype>
  static D8 add_squares(D8 sum, const void* grad, std::int64_t i) {
    for (int half = 0; half < 2; half++) {
      const F x = load_vector<Neon, dtype>(grad, i + 4 * half);
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

const Kernels neon_kernels{"neon", update<Neon>, square_sums<Neon>, sum_parts<Neon>, add_cast<Neon>};

}  // namespace zbench
