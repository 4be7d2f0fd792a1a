// From dtypes known at run time to a kernel compiled for them, where a test runs kernels on the host. `run` has a member
// template `update<grad, moment, out>()`, `square_sums<grad>()` or `sum_parts<grad>()`.
#pragma once
#include "adam/types.hpp"

namespace zbench {
namespace {

template <Dtype grad, Dtype moment, class Run>
void with_out(const Run& run, Dtype out) {
  switch (out) {
    case Dtype::none: return run.template update<grad, moment, Dtype::none>();
    case Dtype::float32: return run.template update<grad, moment, Dtype::float32>();
    case Dtype::bfloat16: return run.template update<grad, moment, Dtype::bfloat16>();
    case Dtype::float16: return run.template update<grad, moment, Dtype::float16>();
  }
}

template <Dtype grad, class Run>
void with_moment(const Run& run, Dtype moment, Dtype out) {
  if (moment == Dtype::bfloat16) return with_out<grad, Dtype::bfloat16>(run, out);
  with_out<grad, Dtype::float32>(run, out);
}

template <class Run>
void dispatch_update(const Run& run, Dtype grad, Dtype moment, Dtype out) {
  switch (grad) {
    case Dtype::bfloat16: return with_moment<Dtype::bfloat16>(run, moment, out);
    case Dtype::float16: return with_moment<Dtype::float16>(run, moment, out);
    default: with_moment<Dtype::float32>(run, moment, out);
  }
}

template <class Run>
void dispatch_sum_parts(const Run& run, Dtype grad) {
  switch (grad) {
    case Dtype::bfloat16: return run.template sum_parts<Dtype::bfloat16>();
    case Dtype::float16: return run.template sum_parts<Dtype::float16>();
    default: run.template sum_parts<Dtype::float32>();
  }
}

template <class Run>
void dispatch_square_sums(const Run& run, Dtype grad) {
  switch (grad) {
    case Dtype::bfloat16: return run.template square_sums<Dtype::bfloat16>();
    case Dtype::float16: return run.template square_sums<Dtype::float16>();
    default: run.template square_sums<Dtype::float32>();
  }
}

}  // namespace
}  // namespace zbench
