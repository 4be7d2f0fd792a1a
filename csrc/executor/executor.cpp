#include "executor/executor.hpp"

#include <algorithm>
#include <deque>
#include <map>
#include <system_error>

#include "adam/dispatch.hpp"
#include "adam/update.hpp"
#include "executor/affinity.hpp"

namespace zbench {
namespace {

std::int64_t now_ns() {
  const auto now = std::chrono::steady_clock::now().time_since_epoch();
  return std::chrono::duration_cast<std::chrono::nanoseconds>(now).count();
}

// One submitted update, whose parts go to whichever workers are free.
struct Update {
  Update(std::vector<Task> the_tasks, double scale, std::shared_ptr<Gate> gate, int threads)
      : tasks(std::move(the_tasks)), layout(tasks), grad_scale(scale), after(std::move(gate)),
        parts(std::max(layout.parts(threads), 1)) {}

  const std::vector<Task> tasks;
  const Layout layout;
  const double grad_scale;
  const std::shared_ptr<Gate> after;
  const int parts;

  // Under the executor's mutex:
  int parts_begun = 0, parts_done = 0;
  std::int64_t start_ns = 0;
  std::string failure;

  bool done() const { return parts_done == parts || !failure.empty(); }
};

// A thread of this work. Throws std::runtime_error where the system starts no more.
template <class Work>
std::thread started(Work work) {
  try {
    return std::thread(std::move(work));
  } catch (const std::system_error& error) {
    throw std::runtime_error(std::string("can't start new thread: ") + error.what());
  }
}

}  // namespace

struct Executor::State : Sleeper {
  using Queue = std::deque<std::shared_ptr<Update>>;

  std::condition_variable progress;                   // somebody's update is done
  Queue queue;                                        // updates with parts that no worker has begun
  std::map<Ticket, std::shared_ptr<Update>> updates;  // not yet waited for
  Ticket last = 0;
  bool closed = false;

  const std::shared_ptr<Update>& find(Ticket ticket) const {
    const auto found = updates.find(ticket);
    if (found != updates.end()) return found->second;
    throw std::invalid_argument("ticket: " + std::to_string(ticket) + " is not known (each is waited for once)");
  }

  Queue::iterator fail(Queue::iterator at, const std::string& why) {
    (*at)->failure = why;
    progress.notify_all();
    return queue.erase(at);
  }

  // The oldest update whose gate is open, and which of its parts to run; null when there is none.
  std::pair<std::shared_ptr<Update>, int> take_part() {
    for (auto at = queue.begin(); at != queue.end();) {
      const std::shared_ptr<Update> update = *at;
      const auto gate = update->after ? update->after->outcome() : "";
      if (!gate) {
        ++at;
      } else if (!gate->empty()) {
        at = fail(at, *gate);
      } else {
        if (update->parts_begun == 0) update->start_ns = now_ns();
        const int part = update->parts_begun++;
        if (update->parts_begun == update->parts) queue.erase(at);
        return {update, part};
      }
    }
    return {nullptr, 0};
  }

  void work_until_closed() {
    std::unique_lock lock(mutex);
    while (true) {
      const auto [update, part] = take_part();
      if (update) {
        lock.unlock();
        update_part(update->tasks, update->layout, update->grad_scale, part, update->parts);
        lock.lock();
        if (++update->parts_done == update->parts) progress.notify_all();
      } else if (closed) {
        return;
      } else {
        work.wait(lock);
      }
    }
  }

  // Where an update stands, for a message.
  std::string place_of(const Update& update) const {
    const std::string size = std::to_string(update.tasks.size()) + " tasks, " +
                             std::to_string(update.layout.total()) + " elements";
    if (update.parts_begun > 0)
      return "running for " + std::to_string((now_ns() - update.start_ns) / 1'000'000) + " ms, " +
             std::to_string(update.parts_done) + " of " + std::to_string(update.parts) + " parts done (" + size + ")";
    if (update.after && !update.after->outcome()) return "waiting for its gate to open (" + size + ")";
    const auto ahead = std::find_if(queue.begin(), queue.end(), [&](const auto& u) { return u.get() == &update; });
    return "queued behind " + std::to_string(ahead - queue.begin()) + " other updates (" + size + ")";
  }
};

Executor::Executor(int threads, const std::vector<int>& affinity) : state_(std::make_shared<State>()), workers_(threads) {
  if (threads < 1) throw std::invalid_argument("threads: expected at least 1, got " + std::to_string(threads));
  for (const int processor : affinity) check_processor(processor);
  kernels();  // a bad ZBENCH_ISA throws here, not in a worker
  threads_.reserve(static_cast<std::size_t>(threads));
  try {
    for (int i = 0; i < threads; i++) {
      threads_.push_back(started([state = state_.get()] { state->work_until_closed(); }));
      if (!affinity.empty()) pin(threads_.back(), affinity[static_cast<std::size_t>(i) % affinity.size()]);
    }
  } catch (...) {
    close();  // those that run already
    throw;
  }
}

Executor::Ticket Executor::submit(std::vector<Task> tasks, double grad_scale, std::shared_ptr<Gate> after) {
  auto update = std::make_shared<Update>(std::move(tasks), grad_scale, std::move(after), workers_);
  if (update->after) update->after->wake(state_);
  const std::lock_guard lock(state_->mutex);
  if (state_->closed) throw UpdateFailed("the executor is closed");
  state_->updates.emplace(++state_->last, update);
  state_->queue.push_back(std::move(update));
  state_->work.notify_all();
  return state_->last;
}

void Executor::wait(Ticket ticket, Timeout timeout) {
  std::unique_lock lock(state_->mutex);
  const std::shared_ptr<Update> update = state_->find(ticket);
  const auto done = [&] { return update->done(); };
  if (!timeout) {
    state_->progress.wait(lock, done);
  } else if (  // the system clock, since ThreadSanitizer of GCC 12 does not know waits on the steady one
      !state_->progress.wait_until(lock, std::chrono::system_clock::now() + *timeout, done)) {
    throw UpdateTimeout("update " + std::to_string(ticket) + " is not done: " + state_->place_of(*update));
  }
  state_->updates.erase(ticket);
  if (!update->failure.empty()) throw UpdateFailed("update " + std::to_string(ticket) + ": " + update->failure);
}

bool Executor::done(Ticket ticket) const {
  const std::lock_guard lock(state_->mutex);
  return state_->find(ticket)->done();
}

bool Executor::cancel(Ticket ticket) {
  const std::lock_guard lock(state_->mutex);
  const std::shared_ptr<Update> update = state_->find(ticket);
  if (update->parts_begun > 0 || update->done()) return false;
  state_->fail(std::find(state_->queue.begin(), state_->queue.end(), update), "cancelled");
  return true;
}

void Executor::close() {
  {
    const std::lock_guard lock(state_->mutex);
    state_->closed = true;
    for (auto at = state_->queue.begin(); at != state_->queue.end();)
      at = (*at)->parts_begun > 0 ? at + 1 : state_->fail(at, "the executor was closed before it began");
    state_->work.notify_all();
  }
  for (std::thread& thread : threads_) thread.join();
  threads_.clear();
}

}  // namespace zbench
