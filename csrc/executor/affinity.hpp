#pragma once
#include <thread>

namespace zbench {

// Throws std::invalid_argument unless this process may run on the processor.
void check_processor(int processor);

// Lets the thread run on that processor alone.
void pin(std::thread& thread, int processor);

}  // namespace zbench
