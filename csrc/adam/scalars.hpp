#pragma once
#include "adam/types.hpp"

namespace zbench {

// The loop's scalars for update number `step` (1 is the first): a pure function, so there is no state to drift.
Scalars scalars_of(const Hyper& hyper, std::int64_t step, double grad_scale);

}  // namespace zbench
