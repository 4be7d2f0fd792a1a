// One instruction set's inner loops. Every table returns the same bits.
#pragma once
#include "adam/types.hpp"

namespace zbench {

struct Kernels {
  const char* name;

  // Updates elements [begin, end) of the task. `stream`: write what is not read again (param_out, `into`) past the caches.
  void (*update)(const Task& task, const Scalars& scalars, std::int64_t begin, std::int64_t end, bool stream);

  // Adds the sums of squares of chunks [first, last), each in the order that the contract fixes.
  void (*square_sums)(const NormTask& task, std::int64_t first, std::int64_t last, ExactSum& sum);

  // Elements [begin, end), which begin at a chunk; see SumTask and AddTask.
  void (*sum_parts)(const SumTask& task, std::int64_t begin, std::int64_t end);
  void (*add_cast)(const AddTask& task, std::int64_t begin, std::int64_t end);

  // The benchmark's bounds: an update's bytes moved, and an array's read, with next to no arithmetic.
  void (*stream)(const Task& task, std::int64_t begin, std::int64_t end);
  float (*read)(const void* from, Dtype dtype, std::int64_t begin, std::int64_t end);
};

extern const Kernels scalar_kernels;
#ifdef ZBENCH_X86
extern const Kernels avx2_kernels;
extern const Kernels avx512_kernels;
#endif
#ifdef ZBENCH_NEON
extern const Kernels neon_kernels;
#endif

}  // namespace zbench
