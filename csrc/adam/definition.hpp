// The definition of the update: what one element becomes. Every vector path, and CUDA, must return these bits.
#pragma once
#include <cmath>

#include "adam/rounding.hpp"

namespace zbench {
namespace {

struct Element {
  float param, exp_avg, exp_avg_sq, max_exp_avg_sq;
};

// torch.optim.AdamW/Adam(fused=True), operation by operation; AMSGrad where `amsgrad`.
inline Element adam_element(Element old, float grad, const Scalars& s, bool amsgrad) {
  float g = grad * s.grad_scale;
  if (s.gradient_decay != 0.0f) g = std::fma(old.param, s.gradient_decay, g);
  const float m = std::fma(s.lerp_weight, g - old.exp_avg, s.lerp_from_gradient ? g : old.exp_avg);
  const float v = std::fma(s.square_weight * g, g, old.exp_avg_sq * s.beta2);
  const bool keep_max = amsgrad && !(old.max_exp_avg_sq <= v) && v == v;
  const float top = keep_max ? old.max_exp_avg_sq : v;
  const float denominator = std::sqrt(top) / s.root_correction2 + s.eps;
  const float p = old.param * s.parameter_decay + s.negative_step * m / denominator;
  return {canonical(p), canonical(m), canonical(v), canonical(top)};
}

}  // namespace
}  // namespace zbench
