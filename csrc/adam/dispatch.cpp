#include "adam/dispatch.hpp"

#include <atomic>
#include <cstdlib>
#include <stdexcept>

namespace zbench {
namespace {

std::vector<const Kernels*> available() {
  std::vector<const Kernels*> tables{&scalar_kernels};
#ifdef ZBENCH_X86
  __builtin_cpu_init();
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("f16c")) {
    tables.push_back(&avx2_kernels);
    if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
        __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq"))
      tables.push_back(&avx512_kernels);
  }
#endif
#ifdef ZBENCH_NEON
  tables.push_back(&neon_kernels);
#endif
  return tables;
}

const Kernels& table_named(const std::string& name) {
  const auto tables = available();
  if (name.empty()) return *tables.back();
  std::string names;
  for (const Kernels* table : tables) {
    if (name == table->name) return *table;
    names += (names.empty() ? "" : ", ") + std::string(table->name);
  }
  throw std::invalid_argument("ZBENCH_ISA: expected one of " + names + " (what this processor has), got '" + name +
                              "'; unset it for the best");
}

std::atomic<const Kernels*> chosen{nullptr};

}  // namespace

std::vector<std::string> available_isas() {
  std::vector<std::string> names;
  for (const Kernels* table : available()) names.emplace_back(table->name);
  return names;
}

void force_isa(const std::string& name) { chosen = &table_named(name); }

const Kernels& kernels() {
  const Kernels* table = chosen;
  if (!table) {
    const char* wanted = std::getenv("ZBENCH_ISA");
    chosen = table = &table_named(wanted ? wanted : "");
  }
  return *table;
}

}  // namespace zbench
