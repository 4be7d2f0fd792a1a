// The CUDA kernels' own code, compiled for the host: every thread of every block in turn, threads of a warp side by
// side where they exchange values. It has the C interface of cuda/adam.cu; pointers are the host's.
#include <barrier>
#include <cmath>
#include <cstdint>
#include <thread>
#include <vector>

#define __device__
#define __global__
#define __launch_bounds__(threads)

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
struct Warp {
  std::barrier<> barrier{32};
  double values[32];
};

thread_local Index threadIdx, blockIdx;
thread_local Warp* warp = nullptr;

inline float4 make_float4(float x, float y, float z, float w) { return {x, y, z, w}; }
inline ushort4 make_ushort4(std::uint16_t x, std::uint16_t y, std::uint16_t z, std::uint16_t w) { return {x, y, z, w}; }
inline void atomicAdd(unsigned long long* to, unsigned long long value) {
  __atomic_fetch_add(to, value, __ATOMIC_RELAXED);
}
inline double __shfl_xor_sync(unsigned, double value, int lane) {
  const unsigned me = threadIdx.x % 32;
  warp->values[me] = value;
  warp->barrier.arrive_and_wait();
  const double other = warp->values[me ^ lane];
  warp->barrier.arrive_and_wait();
  return other;
}

}  // namespace

#include "cuda/dispatch.hpp"
#include "cuda/kernels.cuh"

using namespace zbench;

namespace {

struct Update {
  const DeviceTask* rows;
  int count;
  unsigned blocks;
  unsigned long long* nonfinite;

  template <Dtype grad, Dtype moment, Dtype out>
  void update() const {
    for (blockIdx.x = 0; blockIdx.x < blocks; blockIdx.x++)
      for (threadIdx.x = 0; threadIdx.x < device_block_threads; threadIdx.x++)
        update_kernel<grad, moment, out>(rows, count, nonfinite);
  }
};

struct SquareSums {
  const DeviceNormTask* rows;
  int count;
  unsigned blocks;

  template <Dtype grad>
  void square_sums() const {
    for (unsigned block = 0; block < blocks; block++)
      for (unsigned first = 0; first < device_norm_threads; first += 32) {
        Warp shared;
        std::vector<std::thread> threads;
        for (unsigned lane = 0; lane < 32; lane++)
          threads.emplace_back([&, lane] {
            blockIdx.x = block;
            threadIdx.x = first + lane;
            warp = &shared;
            square_sums_kernel<grad>(rows, count);
          });
        for (std::thread& thread : threads) thread.join();
      }
  }
};

}  // namespace

extern "C" void zbench_host_update(const void* rows, int count, std::int64_t blocks, int grad, int moment, int out,
                                   void* nonfinite) {
  const Update run{static_cast<const DeviceTask*>(rows), count, static_cast<unsigned>(blocks),
                   static_cast<unsigned long long*>(nonfinite)};
  dispatch_update(run, static_cast<Dtype>(grad), static_cast<Dtype>(moment), static_cast<Dtype>(out));
}

extern "C" void zbench_host_square_sums(const void* rows, int count, std::int64_t blocks, int dtype) {
  const SquareSums run{static_cast<const DeviceNormTask*>(rows), count, static_cast<unsigned>(blocks)};
  dispatch_square_sums(run, static_cast<Dtype>(dtype));
}
