#include "adam/scalars.hpp"

#include <cmath>

namespace zbench {

Scalars scalars_of(const Hyper& h, std::int64_t step, double grad_scale) {
  const double correction1 = h.bias_correction ? 1.0 - std::pow(h.beta1, static_cast<double>(step)) : 1.0;
  const double correction2 = h.bias_correction ? 1.0 - std::pow(h.beta2, static_cast<double>(step)) : 1.0;
  const float weight = static_cast<float>(1.0 - h.beta1);
  const bool small = weight < 0.5f;
  Scalars s{};
  s.grad_scale = static_cast<float>(grad_scale);
  s.gradient_decay = h.decoupled ? 0.0f : static_cast<float>(h.weight_decay);
  s.parameter_decay = h.decoupled ? static_cast<float>(1.0 - h.lr * h.weight_decay) : 1.0f;
  s.lerp_weight = small ? weight : weight - 1.0f;
  s.lerp_from_gradient = !small;
  s.square_weight = static_cast<float>(1.0 - h.beta2);
  s.beta2 = static_cast<float>(h.beta2);
  s.negative_step = static_cast<float>(-(h.lr / correction1));
  s.root_correction2 = static_cast<float>(std::sqrt(correction2));
  s.eps = static_cast<float>(h.eps);
  return s;
}

}  // namespace zbench
