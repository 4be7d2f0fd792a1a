// Many threads submit, gate, cancel and wait on one executor, while it is closed at a random moment.
#include <atomic>
#include <random>
#include <vector>

#include "adam/update.hpp"
#include "executor/executor.hpp"
#include "tests/check.hpp"

using namespace zbench;

namespace {

constexpr std::int64_t numel = 40000;

struct State {
  std::vector<float> param = std::vector<float>(numel, 1.0f), m = std::vector<float>(numel), v = std::vector<float>(numel),
                     grad = std::vector<float>(numel, 0.5f);

  Task task(std::int64_t step) {
    Task task{};
    task.from = task.into = {param.data(), m.data(), v.data(), nullptr};
    task.grad = grad.data();
    task.numel = numel;
    task.grad_dtype = task.moment_dtype = Dtype::float32;
    task.step = step;
    task.hyper = {1e-3, 0.9, 0.999, 1e-8, 0.01, true, true};
    return task;
  }
};

// One caller: its updates depend on each other, so it waits for each before the next.
void call(Executor& executor, State& state, unsigned seed) {
  std::mt19937 generator(seed);
  for (std::int64_t step = 1; step <= 40; step++) {
    const auto gate = std::make_shared<Gate>();
    const bool gated = generator() % 2, fails = gated && generator() % 5 == 0;
    try {
      const auto ticket = executor.submit({state.task(step)}, 1.0, gated ? gate : nullptr);
      std::thread opener([&] { fails ? gate->fail("on purpose") : gate->open(); });
      if (generator() % 7 == 0) executor.cancel(ticket);
      if (generator() % 3 == 0) try {
          executor.wait(ticket, std::chrono::nanoseconds(1));
          opener.join();
          continue;
        } catch (const UpdateTimeout&) {
        } catch (const UpdateFailed&) {
          opener.join();
          continue;
        }
      opener.join();
      executor.wait(ticket);
      CHECK(!fails);
    } catch (const UpdateFailed&) {
    }
  }
}

void check_bits() {
  State serial, pooled;
  Executor executor(3, {});
  for (std::int64_t step = 1; step <= 20; step++) {
    update({serial.task(step)}, 1.0, 1);
    executor.wait(executor.submit({pooled.task(step)}, 1.0));
  }
  CHECK(serial.param == pooled.param && serial.m == pooled.m && serial.v == pooled.v);
}

void check_callers(bool close_early) {
  std::vector<State> states(4);
  Executor executor(3, {});
  std::vector<std::thread> callers;
  for (unsigned i = 0; i < states.size(); i++) callers.emplace_back([&, i] { call(executor, states[i], i); });
  if (close_early) executor.close();
  for (auto& caller : callers) caller.join();
}

}  // namespace

int main() {
  check_bits();
  for (int round = 0; round < 4; round++) check_callers(round % 2 == 1);
  std::puts("executor: ok");
}
