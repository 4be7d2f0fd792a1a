#pragma once
#include <string>
#include <vector>

#include "adam/kernels.hpp"

namespace zbench {

// Names of the instruction sets that were compiled in and that this processor has; best last, "scalar" first.
std::vector<std::string> available_isas();

// The table in use: the best one, unless ZBENCH_ISA or force_isa named another.
// Throws std::invalid_argument when ZBENCH_ISA names one that is not available.
const Kernels& kernels();

// Chooses by name for all later calls; "" returns to the default. Throws std::invalid_argument if not available.
void force_isa(const std::string& name);

}  // namespace zbench
