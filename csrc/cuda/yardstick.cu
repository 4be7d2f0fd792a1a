// The machine's yardstick on a CUDA device: a matrix product on its tensor cores, for NVRTC. zbench/worker/yardstick.py
// launches it, and copies within the device's memory.
#include "adam/rounding.hpp"

using namespace zbench;

namespace {

constexpr int side = 2048;         // of the matrices
constexpr int fragment_side = 16;  // what a tensor core multiplies at once
constexpr int warp_side = 32;      // of a warp's part of the product
constexpr int block_side = 2 * warp_side;

// 16 x 16 numbers, spread over the threads of a warp as the tensor core wants them.
struct Halves {
  unsigned x[8];
};
struct Floats {
  float x[8];
};

// By rows where `rows`, else by columns.
template <bool rows>
Halves load_fragment(const std::uint16_t* from) {
  Halves h;
  if constexpr (rows)
    asm("wmma.load.a.sync.aligned.row.m16n16k16.f16 {%0, %1, %2, %3, %4, %5, %6, %7}, [%8], %9;"
        : "=r"(h.x[0]), "=r"(h.x[1]), "=r"(h.x[2]), "=r"(h.x[3]), "=r"(h.x[4]), "=r"(h.x[5]), "=r"(h.x[6]),
          "=r"(h.x[7])
        : "l"(from), "r"(side));
  else
    asm("wmma.load.b.sync.aligned.col.m16n16k16.f16 {%0, %1, %2, %3, %4, %5, %6, %7}, [%8], %9;"
        : "=r"(h.x[0]), "=r"(h.x[1]), "=r"(h.x[2]), "=r"(h.x[3]), "=r"(h.x[4]), "=r"(h.x[5]), "=r"(h.x[6]),
          "=r"(h.x[7])
        : "l"(from), "r"(side));
  return h;
}

void multiply_add(Floats& sum, const Halves& a, const Halves& b) {
  float* const s = sum.x;
  asm(
      "wmma.mma.sync.aligned.row.col.m16n16k16.f32.f32 {%0, %1, %2, %3, %4, %5, %6, %7}, "
      "{%8, %9, %10, %11, %12, %13, %14, %15}, {%16, %17, %18, %19, %20, %21, %22, %23}, "
      "{%0, %1, %2, %3, %4, %5, %6, %7};"
      : "+f"(s[0]), "+f"(s[1]), "+f"(s[2]), "+f"(s[3]), "+f"(s[4]), "+f"(s[5]), "+f"(s[6]), "+f"(s[7])
      : "r"(a.x[0]), "r"(a.x[1]), "r"(a.x[2]), "r"(a.x[3]), "r"(a.x[4]), "r"(a.x[5]), "r"(a.x[6]), "r"(a.x[7]),
        "r"(b.x[0]), "r"(b.x[1]), "r"(b.x[2]), "r"(b.x[3]), "r"(b.x[4]), "r"(b.x[5]), "r"(b.x[6]), "r"(b.x[7]));
}

void store_fragment(float* to, const Floats& sum) {
  const float* const s = sum.x;
  asm volatile("wmma.store.d.sync.aligned.row.m16n16k16.f32 [%0], {%1, %2, %3, %4, %5, %6, %7, %8}, %9;" ::"l"(to),
               "f"(s[0]), "f"(s[1]), "f"(s[2]), "f"(s[3]), "f"(s[4]), "f"(s[5]), "f"(s[6]), "f"(s[7]), "r"(side)
               : "memory");
}

}  // namespace

// Numbers in [-1, 1) without a pattern: a card computes faster, and draws less power, on zeros.
extern "C" __global__ void zbench_fill(std::uint16_t* values, std::int64_t count) {
  for (std::int64_t i = blockIdx.x * std::int64_t(blockDim.x) + threadIdx.x; i < count; i += gridDim.x * blockDim.x)
    values[i] = to_float16(float((unsigned(i) * 2654435761u) >> 8) * 0x1p-23f - 1.0f);
}

// out [side, side] = a [side, side] times b [side, side], which is stored by columns.
extern "C" __global__ void __launch_bounds__(128)
    zbench_product(const std::uint16_t* a, const std::uint16_t* b, float* out) {
  constexpr int n = fragment_side, each = warp_side / fragment_side;
  const int warp = threadIdx.x / 32;
  const int row = blockIdx.y * block_side + warp / 2 * warp_side;
  const int column = blockIdx.x * block_side + warp % 2 * warp_side;
  Floats sums[each][each] = {};
  for (int k = 0; k < side; k += n) {
    Halves left[each], right[each];
    for (int i = 0; i < each; i++) {
      left[i] = load_fragment<true>(a + (row + i * n) * side + k);
      right[i] = load_fragment<false>(b + (column + i * n) * side + k);
    }
    for (int i = 0; i < each; i++)
      for (int j = 0; j < each; j++) multiply_add(sums[i][j], left[i], right[j]);
  }
  for (int i = 0; i < each; i++)
    for (int j = 0; j < each; j++) store_fragment(out + (row + i * n) * side + column + j * n, sums[i][j]);
}
