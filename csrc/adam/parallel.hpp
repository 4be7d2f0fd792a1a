// Runs the parts of one call side by side: on OpenMP's threads, which torch's own loops share, or std::thread's.
#pragma once
#ifdef _OPENMP
#include <omp.h>
#else
#include <thread>
#include <vector>
#endif

namespace zbench {

// Calls work(part) once for every part in [0, parts); work must not throw.
template <class Work>
void in_parallel(int parts, const Work& work) {
  if (parts <= 1) {
    if (parts == 1) work(0);
    return;
  }
#ifdef _OPENMP
#pragma omp parallel num_threads(parts)
  for (int part = omp_get_thread_num(); part < parts; part += omp_get_num_threads()) work(part);
#else
  std::vector<std::thread> threads;
  for (int part = 1; part < parts; part++) threads.emplace_back([&work, part] { work(part); });
  work(0);
  for (auto& thread : threads) thread.join();
#endif
}

}  // namespace zbench
