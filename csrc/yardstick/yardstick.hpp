// What a machine does with fixed work: three kernels that no configuration and no library can change, timed beside
// the trials. Ranks are processes; they meet in a file that all of them map.
#pragma once
#include <cstddef>
#include <functional>
#include <memory>
#include <string>
#include <vector>

namespace zbench {

// Raised with every change of the work, also in cuda/yardstick.cu or zbench/worker/yardstick.py: figures of two
// versions cannot be compared.
inline constexpr int yardstick_version = 1;

class Yardstick {
 public:
  // path: a file of ranks on one machine, made by whoever comes first. Throws std::system_error.
  Yardstick(const std::string& path, int rank, int ranks, int threads);
  ~Yardstick();
  Yardstick(const Yardstick&) = delete;
  Yardstick& operator=(const Yardstick&) = delete;

  // Each runs on all ranks at once and returns the slowest one's seconds, the same on every rank.
  double compute();  // multiply-adds in registers, on every thread
  double memory();   // copies between arrays larger than the caches, on every thread
  double meeting();  // a millisecond's work, then all ranks wait for one another; many times

  // The same of other work, such as a device's, which may call meet().
  double slowest(const std::function<void()>& work);
  void meet();  // wait for all ranks

 private:
  struct Shared;
  Shared* shared_;
  int rank_, ranks_, threads_;
  std::vector<float> from_, to_;
};

}  // namespace zbench
