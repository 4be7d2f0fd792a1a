#include "adam/update.hpp"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>

#include "adam/dispatch.hpp"
#include "adam/exact_sum.hpp"
#include "adam/parallel.hpp"
#include "adam/scalars.hpp"

namespace zbench {
namespace {

constexpr std::int64_t norm_piece = 8192;  // elements whose gradients stay in the nearest caches between two visits
constexpr std::int64_t worth_a_thread = 16384;  // elements; below this, waking another thread costs more than it saves

std::int64_t last_level_cache_bytes() {
  static const std::int64_t bytes = [] {
#ifdef _SC_LEVEL3_CACHE_SIZE
    const long found = sysconf(_SC_LEVEL3_CACHE_SIZE);
    if (found > 0) return static_cast<std::int64_t>(found);
#endif
    return std::int64_t{32} << 20;
  }();
  return bytes;
}

// Whether the reduced copies of an update in place go past the caches, too: where the call's data would not
// have stayed in them. 12: bytes of a parameter and two moments in float32.
bool worth_streaming(const std::vector<Task>& tasks, std::int64_t total) {
  if (tasks.empty()) return false;
  return total * (12 + bytes_of(tasks[0].grad_dtype)) > last_level_cache_bytes();
}

// Integers: in whatever order threads come, the words are the same.
void add_to(std::int64_t* shared, const ExactSum& sum) {
  for (int i = 0; i < exact_words; i++)
    if (const std::uint64_t word = carried(sum.words, i))
      __atomic_fetch_add(shared + i, static_cast<std::int64_t>(word), __ATOMIC_RELAXED);
}

template <class Tasks, class Visit>
void for_pieces(const Tasks& tasks, int threads, const Visit& visit) {
  const Layout layout(tasks);
  const int parts = layout.parts(threads);
  in_parallel(parts, [&](int part) { layout.visit_part(part, parts, visit); });
}

}  // namespace

int Layout::parts(int threads) const {
  const std::int64_t useful = (total() + worth_a_thread - 1) / worth_a_thread;
  return static_cast<int>(std::clamp<std::int64_t>(useful, total() > 0 ? 1 : 0, std::max(threads, 1)));
}

std::int64_t Layout::boundary(int part, int parts) const {
  if (part == parts) return total();
  return total() / parts * part + total() % parts * part / parts;
}

std::size_t Layout::task_at(std::int64_t position) const {
  const auto after = std::upper_bound(starts_.begin(), starts_.end(), position);
  return after == starts_.begin() ? 0 : static_cast<std::size_t>(after - starts_.begin()) - 1;
}

std::int64_t Layout::inside(std::size_t index, std::int64_t position) const {
  if (position >= starts_[index + 1]) return starts_[index + 1] - starts_[index];
  return std::max<std::int64_t>(position - starts_[index], 0) / norm_chunk * norm_chunk;
}

void update_part(const std::vector<Task>& tasks, const Layout& layout, double grad_scale, int part, int parts) {
  const Kernels& kernel = kernels();
  const bool stream = worth_streaming(tasks, layout.total());
  const Task* previous = nullptr;
  Scalars scalars{};
  layout.visit_part(part, parts, [&](std::size_t index, std::int64_t begin, std::int64_t end) {
    const Task& task = tasks[index];
    if (!previous || previous->step != task.step || !(previous->hyper == task.hyper))
      scalars = scalars_of(task.hyper, task.step, grad_scale);
    previous = &task;
    // What goes to another half is not read again soon.
    const bool past_caches = stream || task.into.param != task.from.param;
    const std::int64_t size = task.squares ? norm_piece : end - begin;
    ExactSum squares{};
    for (std::int64_t at = begin; at < end; at += size) {
      const std::int64_t stop = std::min(at + size, end);
      if (task.squares)
        kernel.square_sums({task.grad, task.numel, task.grad_dtype}, at / norm_chunk,
                           (stop + norm_chunk - 1) / norm_chunk, squares);
      kernel.update(task, scalars, at, stop, past_caches);
    }
    if (task.squares) add_to(task.squares, squares);
  });
}

void update(const std::vector<Task>& tasks, double grad_scale, int threads) {
  const Layout layout(tasks);
  const int parts = layout.parts(threads);
  kernels();  // a bad ZBENCH_ISA throws here, not inside the region
  in_parallel(parts, [&](int part) { update_part(tasks, layout, grad_scale, part, parts); });
}

void square_sums(const std::vector<NormTask>& tasks, std::int64_t* sums, int threads) {
  const Kernels& kernel = kernels();
  for_pieces(tasks, threads, [&](std::size_t index, std::int64_t begin, std::int64_t end) {
    ExactSum sum{};
    kernel.square_sums(tasks[index], begin / norm_chunk, (end + norm_chunk - 1) / norm_chunk, sum);
    add_to(sums, sum);
  });
}

void sum_parts(const SumTask& task, int threads) {
  const Kernels& kernel = kernels();
  for_pieces(std::array{task}, threads,
             [&](std::size_t, std::int64_t begin, std::int64_t end) { kernel.sum_parts(task, begin, end); });
}

void add_cast(const AddTask& task, int threads) {
  const Kernels& kernel = kernels();
  for_pieces(std::array{task}, threads,
             [&](std::size_t, std::int64_t begin, std::int64_t end) { kernel.add_cast(task, begin, end); });
}

void stream(const std::vector<Task>& tasks, int threads) {
  const Kernels& kernel = kernels();
  for_pieces(tasks, threads, [&](std::size_t index, std::int64_t begin, std::int64_t end) {
    kernel.stream(tasks[index], begin, end);
  });
}

float read(const NormTask& task, int threads) {
  const Kernels& kernel = kernels();
  std::atomic<float> any{0.0f};
  for_pieces(std::array{task}, threads, [&](std::size_t, std::int64_t begin, std::int64_t end) {
    any = kernel.read(task.grad, task.dtype, begin, end);
  });
  return any;
}

}  // namespace zbench
