// What an update may have to wait for, such as the arrival of its gradients.
#pragma once
#include <condition_variable>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

namespace zbench {

// Someone who sleeps on `work` under `mutex` until a gate may have settled.
struct Sleeper {
  mutable std::mutex mutex;
  std::condition_variable work;
};

// Opened or failed once, from any thread; later calls change nothing.
class Gate {
 public:
  void open() { settle(""); }
  void fail(const std::string& why) { settle(why.empty() ? "the gate failed" : why); }

  // Nothing while undecided, "" when open, else why it failed.
  std::optional<std::string> outcome() const;

  // Wakes the sleeper when the gate settles. Lock order: the sleeper's mutex, then the gate's.
  void wake(const std::shared_ptr<Sleeper>& sleeper);

 private:
  void settle(const std::string& why);

  mutable std::mutex mutex_;
  std::optional<std::string> outcome_;
  std::vector<std::weak_ptr<Sleeper>> sleepers_;
};

}  // namespace zbench
