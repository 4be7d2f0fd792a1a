// Random updates and sums on every instruction set of this processor: the scalar path's bits, and nothing outside the
// arrays (each is a heap block of its exact size, so that AddressSanitizer sees one byte too many).
#include <cstdio>
#include <cstring>
#include <random>
#include <vector>

#include "adam/dispatch.hpp"
#include "adam/rounding.hpp"
#include "adam/update.hpp"
#include "tests/check.hpp"

using namespace zbench;

namespace {

std::mt19937_64 generator(20261120);

std::int64_t between(std::int64_t low, std::int64_t high) {
  return std::uniform_int_distribution<std::int64_t>(low, high)(generator);
}

// Elements of a dtype at an offset of 0 to 3 elements, so that most are not aligned.
struct Array {
  Array(std::int64_t numel, Dtype kind, bool positive) : dtype(kind), offset(between(0, 3)) {
    bytes.resize(static_cast<std::size_t>((numel + offset) * bytes_of(kind)));
    for (std::int64_t i = 0; i < numel; i++) store(data(), dtype, i, number(positive));
  }
  void* data() { return bytes.data() + offset * bytes_of(dtype); }

  static float number(bool positive) {
    switch (between(0, 40)) {
      case 0: return __builtin_inff();
      case 1: return float_of(0x7fc00000u);
      case 2: return 1e-41f;
      case 3: return positive ? 0.0f : -0.0f;
      default: break;
    }
    const float x = std::normal_distribution<float>(0.0f, 0.1f)(generator);
    return positive ? x * x : x;
  }

  Dtype dtype;
  std::int64_t offset;
  std::vector<unsigned char> bytes;
};

struct Case {
  std::int64_t numel = between(0, 3) ? between(0, 600) : between(0, 60000);
  Dtype grad_dtype = static_cast<Dtype>(between(1, 3)), moment_dtype = static_cast<Dtype>(between(1, 2)),
        out_dtype = static_cast<Dtype>(between(0, 3));
  bool amsgrad = between(0, 1), buffered = between(0, 1);
  std::vector<Array> arrays;
  Task task{};

  Case() {
    const auto add = [&](Dtype dtype, bool positive) { arrays.emplace_back(numel, dtype, positive); };
    for (int half = 0; half < 2; half++) {
      add(Dtype::float32, false);
      for (int moment = 0; moment < 3; moment++) add(moment_dtype, moment > 0);
    }
    add(grad_dtype, false);
    if (out_dtype != Dtype::none) add(out_dtype, false);
    task.numel = numel;
    task.grad_dtype = grad_dtype;
    task.moment_dtype = moment_dtype;
    task.out_dtype = out_dtype;
    task.stochastic = moment_dtype == Dtype::bfloat16 && between(0, 1);
    task.rounding_seed = generator();
    task.rounding_offset = (std::uint64_t{1} << 32) - static_cast<std::uint64_t>(between(0, 1000));
    task.step = between(1, 100);
    task.hyper = {1e-3, between(0, 1) ? 0.9 : 0.3, 0.95, 1e-8, between(0, 1) ? 0.1 : 0.0, between(0, 1) != 0,
                  between(0, 1) != 0};
  }

  Slot slot(std::size_t first) {
    return {static_cast<float*>(arrays[first].data()), arrays[first + 1].data(), arrays[first + 2].data(),
            amsgrad ? arrays[first + 3].data() : nullptr};
  }

  // Runs the update on a copy of the arrays and returns them.
  std::vector<Array> run(int threads) {
    const std::vector<Array> before = arrays;
    task.from = slot(0);
    task.into = buffered ? slot(4) : task.from;
    task.grad = arrays[8].data();
    task.param_out = out_dtype == Dtype::none ? nullptr : arrays[9].data();
    update({task}, 0.37, threads);
    std::vector<Array> after = arrays;
    arrays = before;
    return after;
  }
};

void check_updates() {
  for (int round = 0; round < 300; round++) {
    Case one;
    force_isa("scalar");
    const auto expected = one.run(1);
    for (const auto& isa : available_isas()) {
      force_isa(isa);
      const auto got = one.run(static_cast<int>(between(1, 4)));
      for (std::size_t i = 0; i < got.size(); i++) CHECK(got[i].bytes == expected[i].bytes);
    }
  }
}

void check_sums() {
  for (int round = 0; round < 200; round++) {
    const std::int64_t numel = between(0, 5000);
    const Dtype dtype = static_cast<Dtype>(between(1, 3));
    Array first(numel, dtype, false), second(numel, dtype, false);
    const void* parts[] = {first.data(), second.data()};
    std::vector<float> sum(static_cast<std::size_t>(numel)), expected(sum);
    force_isa("scalar");
    sum_parts({expected.data(), parts, 2, dtype, numel}, 1);
    for (const auto& isa : available_isas()) {
      force_isa(isa);
      sum_parts({sum.data(), parts, 2, dtype, numel}, 3);
      CHECK(std::memcmp(sum.data(), expected.data(), sum.size() * sizeof(float)) == 0);
    }
  }
}

// An exact sum whose limbs have passed on all they can: equal sums have equal words.
std::vector<std::uint64_t> settled(std::vector<std::int64_t> sums) {
  for (int i = 0; i + 1 < exact_limbs; i++) {
    sums[i + 1] += sums[i] >> 32;
    sums[i] &= 0xffffffff;
  }
  return {sums.begin(), sums.end()};
}

void check_square_sums() {
  for (int round = 0; round < 200; round++) {
    const std::int64_t numel = between(0, 5000);
    const Dtype dtype = static_cast<Dtype>(between(1, 3));
    Array grad(numel, dtype, false);
    if (round % 2)  // all finite
      for (std::int64_t i = 0; i < numel; i++) store(grad.data(), dtype, i, static_cast<float>(between(-9, 9)) * 0x1p-9f);
    const auto sum = [&](int threads) {
      std::vector<std::int64_t> words(exact_words);
      square_sums({{grad.data(), numel, dtype}, {grad.data(), numel / 2, dtype}}, words.data(), threads);
      return settled(words);
    };
    force_isa("scalar");
    const auto expected = sum(1);
    for (const auto& isa : available_isas()) {
      force_isa(isa);
      CHECK(sum(static_cast<int>(between(1, 4))) == expected);
    }
  }
}

}  // namespace

int main() {
  check_updates();
  check_sums();
  check_square_sums();
  std::printf("kernels: ok:");
  for (const auto& isa : available_isas()) std::printf(" %s", isa.c_str());
  std::printf("\n");
}
