#pragma once
#include "adam/types.hpp"

namespace zbench {

// The loop's scalars for update number `step` (1 is the first): a pure function, so there is no state to drift.
Scalars scalars_of(const Hyper& hyper, std::int64_t step, double grad_scale);

// 32-bit keys of the rounding stream of elements [2^32 block, 2^32 (block + 1)): one for the counter, one for between
// the hash's rounds.
struct RoundingKey {
  std::uint32_t counter, between;
};
RoundingKey rounding_key(std::uint64_t seed, std::int64_t step, std::uint64_t block);

}  // namespace zbench
