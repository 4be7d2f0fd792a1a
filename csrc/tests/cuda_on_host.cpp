// The CUDA kernels' own code, compiled for the host: every thread of every block in turn, threads of a block side by
// side where they exchange values. Pointers are the host's.
#include <barrier>
#include <cmath>
#include <cstdint>
#include <thread>
#include <vector>

#define __shared__ static

namespace {

struct float4 {
  float x, y, z, w;
};
struct ushort4 {
  unsigned short x, y, z, w;
};
struct Index {
  unsigned x;
};
struct Block {
  std::barrier<> barrier{256};
  double values[256];
};

thread_local Index threadIdx, blockIdx;
thread_local Block* block = nullptr;

inline float4 make_float4(float x, float y, float z, float w) { return {x, y, z, w}; }
inline ushort4 make_ushort4(std::uint16_t x, std::uint16_t y, std::uint16_t z, std::uint16_t w) { return {x, y, z, w}; }
inline void atomicAdd(unsigned long long* to, unsigned long long value) {
  __atomic_fetch_add(to, value, __ATOMIC_RELAXED);
}
inline double __shfl_xor_sync(unsigned, double value, int lane) {
  block->values[threadIdx.x] = value;
  block->barrier.arrive_and_wait();
  const double other = block->values[threadIdx.x ^ lane];
  block->barrier.arrive_and_wait();
  return other;
}
inline void __syncthreads() { block->barrier.arrive_and_wait(); }

}  // namespace

#include "cuda/kernels.cuh"
#include "tests/dispatch.hpp"

using namespace zbench;

namespace {

struct Update {
  const DeviceTask* rows;
  int count;
  unsigned blocks;

  template <Dtype grad, Dtype moment, Dtype out>
  void update() const {
    for (blockIdx.x = 0; blockIdx.x < blocks; blockIdx.x++)
      for (threadIdx.x = 0; threadIdx.x < device_block_threads; threadIdx.x++)
        update_block<grad, moment, out>(rows, count);
  }
};

struct SumParts {
  float* out;
  const void* parts;
  int count;
  std::int64_t numel;
  unsigned blocks;

  template <Dtype grad>
  void sum_parts() const {
    for (blockIdx.x = 0; blockIdx.x < blocks; blockIdx.x++)
      for (threadIdx.x = 0; threadIdx.x < device_block_threads; threadIdx.x++)
        sum_four<grad>(out, parts, count, numel);
  }
};

struct SquareSums {
  const DeviceNormTask* rows;
  int count;
  unsigned blocks;
  std::uint64_t* sums;

  // Shared memory is a static variable here, so blocks run one after another.
  template <Dtype grad>
  void square_sums() const {
    Block shared;
    std::vector<std::thread> threads;
    for (unsigned thread = 0; thread < device_norm_threads; thread++)
      threads.emplace_back([&, thread] {
        block = &shared;
        threadIdx.x = thread;
        for (blockIdx.x = 0; blockIdx.x < blocks; blockIdx.x++) {
          square_sums_block<grad>(rows, count, sums);
          __syncthreads();
        }
      });
    for (std::thread& thread : threads) thread.join();
  }
};

}  // namespace

extern "C" void zbench_host_update(const void* rows, int count, std::int64_t blocks, int grad, int moment, int out) {
  const Update run{static_cast<const DeviceTask*>(rows), count, static_cast<unsigned>(blocks)};
  dispatch_update(run, static_cast<Dtype>(grad), static_cast<Dtype>(moment), static_cast<Dtype>(out));
}

extern "C" void zbench_host_sum_parts(void* out, const void* parts, int count, std::int64_t numel, std::int64_t blocks,
                                      int dtype) {
  const SumParts run{static_cast<float*>(out), parts, count, numel, static_cast<unsigned>(blocks)};
  dispatch_sum_parts(run, static_cast<Dtype>(dtype));
}

extern "C" void zbench_host_square_sums(const void* rows, int count, std::int64_t blocks, int dtype, void* sums) {
  const SquareSums run{static_cast<const DeviceNormTask*>(rows), count, static_cast<unsigned>(blocks),
                       static_cast<std::uint64_t*>(sums)};
  dispatch_square_sums(run, static_cast<Dtype>(dtype));
}
