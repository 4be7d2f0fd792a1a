// The machine's yardstick on a CUDA device: a matrix product on its tensor cores, and a copy through its memory.
// Loaded by zbench/worker/yardstick.py, with the C interface's rules of adam.cu; but each call returns when the
// device has done the work.
#include <cuda_fp16.h>
#include <cuda_runtime.h>
#include <mma.h>

#include <cstddef>

#include "cuda/export.hpp"

namespace {

constexpr int side = 2048;                              // of the matrices: 17 GFLOP a product
constexpr int fragment_side = 16;                       // what a tensor core multiplies at once
constexpr int warp_side = 32;                           // of a warp's part of the product
constexpr int block_side = 2 * warp_side;
constexpr std::size_t array_bytes = std::size_t(128) << 20;  // two exceed every cache of 2025

// Numbers in [-1, 1) without a pattern: a card computes faster, and draws less power, on zeros.
__global__ void fill(half* values, std::size_t count) {
  for (std::size_t i = blockIdx.x * std::size_t(blockDim.x) + threadIdx.x; i < count; i += gridDim.x * blockDim.x)
    values[i] = __float2half(float((unsigned(i) * 2654435761u) >> 8) * 0x1p-23f - 1.0f);
}

// out [side, side] = a [side, side] times b [side, side]; b by columns.
__global__ void __launch_bounds__(128) product(const half* a, const half* b, float* out) {
  using namespace nvcuda::wmma;
  constexpr int n = fragment_side, each = warp_side / fragment_side;
  const int warp = threadIdx.x / 32;
  const int row = blockIdx.y * block_side + warp / 2 * warp_side;
  const int column = blockIdx.x * block_side + warp % 2 * warp_side;
  fragment<accumulator, n, n, n, float> sums[each][each];
  for (auto& line : sums)
    for (auto& sum : line) fill_fragment(sum, 0.0f);
  for (int k = 0; k < side; k += n) {
    fragment<matrix_a, n, n, n, half, row_major> left[each];
    fragment<matrix_b, n, n, n, half, col_major> right[each];
    for (int i = 0; i < each; i++) {
      load_matrix_sync(left[i], a + (row + i * n) * side + k, side);
      load_matrix_sync(right[i], b + (column + i * n) * side + k, side);
    }
    for (int i = 0; i < each; i++)
      for (int j = 0; j < each; j++) mma_sync(sums[i][j], left[i], right[j], sums[i][j]);
  }
  for (int i = 0; i < each; i++)
    for (int j = 0; j < each; j++)
      store_matrix_sync(out + (row + i * n) * side + column + j * n, sums[i][j], side, mem_row_major);
}

cudaError_t done() {
  const cudaError_t launched = cudaGetLastError();
  return launched != cudaSuccess ? launched : cudaDeviceSynchronize();
}

}  // namespace

// *place: memory on the device for the calls below; it goes with the process.
ZBENCH_EXPORT int zbench_cuda_yardstick(int device, void** place) {
  if (const cudaError_t error = cudaSetDevice(device); error != cudaSuccess) return error;
  if (const cudaError_t error = cudaMalloc(place, 2 * array_bytes); error != cudaSuccess) return error;
  fill<<<1024, 256>>>(static_cast<half*>(*place), 2 * array_bytes / sizeof(half));
  return done();
}

ZBENCH_EXPORT int zbench_cuda_product(int device, void* place, int times) {
  if (const cudaError_t error = cudaSetDevice(device); error != cudaSuccess) return error;
  const half* from = static_cast<const half*>(place);
  float* out = reinterpret_cast<float*>(static_cast<char*>(place) + array_bytes);
  for (int count = 0; count < times; count++)
    product<<<dim3(side / block_side, side / block_side), 128>>>(from, from + side * side, out);
  return done();
}

ZBENCH_EXPORT int zbench_cuda_copy(int device, void* place, int times) {
  if (const cudaError_t error = cudaSetDevice(device); error != cudaSuccess) return error;
  for (int count = 0; count < times; count++) {
    void* to = static_cast<char*>(place) + array_bytes;
    if (const cudaError_t error = cudaMemcpyAsync(to, place, array_bytes, cudaMemcpyDeviceToDevice);
        error != cudaSuccess)
      return error;
  }
  return done();
}
