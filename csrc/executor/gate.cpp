#include "executor/gate.hpp"

namespace zbench {

std::optional<std::string> Gate::outcome() const {
  const std::lock_guard lock(mutex_);
  return outcome_;
}

void Gate::wake(const std::shared_ptr<Sleeper>& sleeper) {
  const std::lock_guard lock(mutex_);
  if (!outcome_) sleepers_.push_back(sleeper);
}

void Gate::settle(const std::string& why) {
  std::vector<std::weak_ptr<Sleeper>> sleepers;
  {
    const std::lock_guard lock(mutex_);
    if (outcome_) return;
    outcome_ = why;
    sleepers.swap(sleepers_);
  }
  for (const auto& weak : sleepers)
    if (const auto sleeper = weak.lock()) {
      // Under the sleeper's mutex it has either not looked at the gate yet or is asleep: no wake-up is lost.
      const std::lock_guard lock(sleeper->mutex);
      sleeper->work.notify_all();
    }
}

}  // namespace zbench
