#include "executor/affinity.hpp"

#include <stdexcept>
#include <string>

#ifdef __linux__
#include <pthread.h>
#include <sched.h>

namespace zbench {

void check_processor(int processor) {
  cpu_set_t allowed;
  CPU_ZERO(&allowed);
  sched_getaffinity(0, sizeof allowed, &allowed);
  if (processor < 0 || processor >= CPU_SETSIZE || !CPU_ISSET(processor, &allowed))
    throw std::invalid_argument("affinity: this process may not run on processor " + std::to_string(processor));
}

void pin(std::thread& thread, int processor) {
  cpu_set_t set;
  CPU_ZERO(&set);
  CPU_SET(processor, &set);
  pthread_setaffinity_np(thread.native_handle(), sizeof set, &set);
}

}  // namespace zbench

#else

namespace zbench {

void check_processor(int) { throw std::invalid_argument("affinity: threads can be pinned on Linux only"); }
void pin(std::thread&, int) {}

}  // namespace zbench

#endif
