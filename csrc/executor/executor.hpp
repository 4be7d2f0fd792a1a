// Worker threads that run Adam updates while the caller does something else. No Python, no OpenMP.
#pragma once
#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "adam/types.hpp"
#include "executor/gate.hpp"

namespace zbench {

// The update did not run: its gate failed, it was cancelled, or the executor was closed before it began.
class UpdateFailed : public std::runtime_error {
  using std::runtime_error::runtime_error;
};

// The update was not done in time; it stays known, and may still be waited for.
class UpdateTimeout : public std::runtime_error {
  using std::runtime_error::runtime_error;
};

class Executor {
 public:
  using Ticket = std::int64_t;
  using Timeout = std::optional<std::chrono::nanoseconds>;  // nothing: as long as it takes

  // affinity: worker i runs on processor affinity[i % size] alone; empty: anywhere.
  // Throws std::invalid_argument for no threads or a processor that cannot be had.
  Executor(int threads, const std::vector<int>& affinity);
  ~Executor() { close(); }
  Executor(const Executor&) = delete;
  Executor& operator=(const Executor&) = delete;

  // Queues one update, which begins when a worker is free and `after`, if given, is open. The tensors must live until
  // it has been waited for. Throws UpdateFailed when closed.
  Ticket submit(std::vector<Task> tasks, double grad_scale, std::shared_ptr<Gate> after = nullptr);

  // Blocks until the update is done, and forgets it. Throws UpdateFailed, UpdateTimeout, or std::invalid_argument for
  // a ticket that is not known.
  void wait(Ticket ticket, Timeout timeout = std::nullopt);

  bool done(Ticket ticket) const;

  // True if the update had not begun and now never will: waiting for it throws UpdateFailed.
  bool cancel(Ticket ticket);

  // Lets begun updates finish, fails the others and ends the threads. May be called again, from one thread at a time.
  void close();

  struct State;

 private:
  const std::shared_ptr<State> state_;
  const int workers_;
  std::vector<std::thread> threads_;
};

}  // namespace zbench
