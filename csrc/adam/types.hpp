// The data that one Adam update reads and writes. Plain structs; no torch, no Python.
#pragma once
#include <cstdint>

namespace zbench {

enum class Dtype : std::uint8_t { none = 0, float32 = 1, bfloat16 = 2, float16 = 3 };

constexpr std::int64_t bytes_of(Dtype dtype) { return dtype == Dtype::none ? 0 : dtype == Dtype::float32 ? 4 : 2; }

// One optimizer group's hyperparameters, as the user gave them.
struct Hyper {
  double lr, beta1, beta2, eps, weight_decay;
  bool bias_correction;
  bool decoupled;  // AdamW; otherwise the decay is added to the gradient
};

inline bool operator==(const Hyper& a, const Hyper& b) {
  return a.lr == b.lr && a.beta1 == b.beta1 && a.beta2 == b.beta2 && a.eps == b.eps &&
         a.weight_decay == b.weight_decay && a.bias_correction == b.bias_correction && a.decoupled == b.decoupled;
}

// What the inner loop multiplies by: computed in double by `scalars_of`, rounded once.
struct Scalars {
  float grad_scale;
  float gradient_decay;    // weight_decay where it is added to the gradient, else 0
  float parameter_decay;   // 1 - lr * weight_decay where it is decoupled, else 1
  float lerp_weight;       // 1 - beta1, or (1 - beta1) - 1 where lerp_from_gradient
  float square_weight;     // 1 - beta2
  float beta2;
  float negative_step;     // -lr / bias_correction1
  float root_correction2;  // sqrt(bias_correction2)
  float eps;
  bool lerp_from_gradient;  // beta1 <= 0.5: the moment is interpolated from the gradient's end
};

// The tensors that one update replaces. Moments are float32 or bfloat16, all of one dtype.
struct Slot {
  float* param;
  void* exp_avg;
  void* exp_avg_sq;
  void* max_exp_avg_sq;  // null: no AMSGrad
};

// One run of consecutive elements that share a step and hyperparameters. See zbench/engine/adam/contract.py.
struct Task {
  Slot from;
  Slot into;  // equal to `from` for an update in place
  const void* grad;
  void* param_out;  // null: none wanted
  std::int64_t numel;
  Dtype grad_dtype, moment_dtype, out_dtype;
  bool stochastic;
  std::uint64_t rounding_seed;
  std::uint64_t rounding_offset;
  std::int64_t step;
  Hyper hyper;
  std::int64_t* squares = nullptr;  // ExactSum's words; where wanted, the raw gradient's square sums are added in the same visit
};

// One gradient whose chunks are squared and summed.
struct NormTask {
  const void* grad;
  std::int64_t numel;
  Dtype dtype;
};

// out[i] = parts[0][i] + parts[1][i] + ..., added in that order in float32. out may be one of the parts.
struct SumTask {
  float* out;
  const void* const* parts;
  int count;
  Dtype dtype;
  std::int64_t numel;
};

// out[i] += grad[i] in float32, rounded once to out's dtype.
struct AddTask {
  void* out;
  const void* grad;
  Dtype out_dtype, grad_dtype;
  std::int64_t numel;
};

inline constexpr std::int64_t norm_chunk = 256;

// A sum of non-negative doubles without rounding; see adam/exact_sum.hpp.
inline constexpr int exact_limbs = 66;
inline constexpr int exact_infinities = exact_limbs, exact_nans = exact_limbs + 1, exact_words = exact_limbs + 2;
struct ExactSum {
  std::uint64_t words[exact_words];
};

}  // namespace zbench
