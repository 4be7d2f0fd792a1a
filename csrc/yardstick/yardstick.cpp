#include "yardstick/yardstick.hpp"

#include <fcntl.h>
#include <pthread.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <system_error>
#include <thread>

#include "adam/parallel.hpp"

namespace zbench {
namespace {

constexpr int most_ranks = 1024;
constexpr int lanes = 64;                               // enough independent sums to hide the latency of one
constexpr int rounds_of_a_call = 1 << 20;               // 3 ms on a server's core of 2023
constexpr int rounds_of_a_meeting = 1 << 17;            // half a millisecond there
constexpr int meetings = 16;
constexpr int copies = 2;
constexpr std::size_t elements = std::size_t(8) << 20;  // 32 MiB an array

[[noreturn]] void fail(const char* what) { throw std::system_error(errno, std::generic_category(), what); }

// Multiply-adds that converge to a fixed point, so that no operand becomes subnormal.
float multiply_adds(int rounds) {
  float sums[lanes];
  for (int lane = 0; lane < lanes; lane++) sums[lane] = 1.0f + float(lane);
  for (int round = 0; round < rounds; round++)
    for (int lane = 0; lane < lanes; lane++) sums[lane] = sums[lane] * 0.5f + 1.0f;
  float total = 0.0f;
  for (const float sum : sums) total += sum;
  return total;
}

void on_threads(int threads, int rounds) {
  in_parallel(threads, [&](int) {
    volatile float kept = multiply_adds(rounds);
    static_cast<void>(kept);
  });
}

}  // namespace

struct Yardstick::Shared {
  std::atomic<int> is_ready;
  pthread_barrier_t barrier;
  double seconds[most_ranks];
};

Yardstick::Yardstick(const std::string& path, int rank, int ranks, int threads)
    : rank_(rank), ranks_(ranks), threads_(threads), from_(elements, 1.0f), to_(elements, 0.0f) {
  if (ranks < 1 || ranks > most_ranks || rank < 0 || rank >= ranks || threads < 1) {
    errno = EINVAL;
    fail("yardstick: rank, ranks and threads");
  }
  const int file = open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600);
  if (file < 0) fail(path.c_str());
  void* place = MAP_FAILED;
  if (ftruncate(file, sizeof(Shared)) == 0)
    place = mmap(nullptr, sizeof(Shared), PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
  const int problem = errno;
  close(file);
  errno = problem;
  if (place == MAP_FAILED) fail(path.c_str());
  shared_ = static_cast<Shared*>(place);
  if (rank == 0) {
    pthread_barrierattr_t attributes;
    pthread_barrierattr_init(&attributes);
    pthread_barrierattr_setpshared(&attributes, PTHREAD_PROCESS_SHARED);
    pthread_barrier_init(&shared_->barrier, &attributes, static_cast<unsigned>(ranks));
    pthread_barrierattr_destroy(&attributes);
    shared_->is_ready.store(1, std::memory_order_release);
  }
  while (shared_->is_ready.load(std::memory_order_acquire) == 0)
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
}

Yardstick::~Yardstick() { munmap(shared_, sizeof(Shared)); }

void Yardstick::meet() { pthread_barrier_wait(&shared_->barrier); }

double Yardstick::slowest(const std::function<void()>& work) {
  meet();
  const auto begin = std::chrono::steady_clock::now();
  work();
  const std::chrono::duration<double> took = std::chrono::steady_clock::now() - begin;
  shared_->seconds[rank_] = took.count();
  meet();
  const double most = *std::max_element(shared_->seconds, shared_->seconds + ranks_);
  meet();  // nobody begins anew before all have read
  return most;
}

double Yardstick::compute() {
  return slowest([&] { on_threads(threads_, rounds_of_a_call); });
}

double Yardstick::memory() {
  return slowest([&] {
    in_parallel(threads_, [&](int part) {
      const std::size_t begin = elements * std::size_t(part) / std::size_t(threads_);
      const std::size_t end = elements * (std::size_t(part) + 1) / std::size_t(threads_);
      for (int count = 0; count < copies; count++)
        std::memcpy(to_.data() + begin, from_.data() + begin, (end - begin) * sizeof(float));
    });
  });
}

double Yardstick::meeting() {
  return slowest([&] {
    for (int count = 0; count < meetings; count++) {
      on_threads(threads_, rounds_of_a_meeting);
      meet();
    }
  });
}

}  // namespace zbench
