# The Adam core: C++ without Python or torch. Each instruction set is one translation unit with its own flags;
# adam/dispatch.cpp chooses among them at run time, so one build serves every processor of the architecture.

add_library(
  zbench_core STATIC
  adam/dispatch.cpp
  adam/kernel_scalar.cpp
  adam/plan.cpp
  adam/scalars.cpp
  adam/update.cpp
  cuda/table.cpp
  executor/affinity.cpp
  executor/executor.cpp
  executor/gate.cpp
  yardstick/yardstick.cpp)
target_include_directories(zbench_core PUBLIC ${CMAKE_CURRENT_SOURCE_DIR})

# -ffp-contract=off: only the fused multiply-adds that the definition spells out. -fno-math-errno: sqrt as one
# instruction. Neither changes a result.
target_compile_options(zbench_core PRIVATE -O3 -Wall -Wextra -ffp-contract=off -fno-math-errno)
target_link_libraries(zbench_core PUBLIC Threads::Threads)

if(CMAKE_SYSTEM_PROCESSOR MATCHES "^(x86_64|AMD64|amd64)$")
  target_sources(zbench_core PRIVATE adam/kernel_avx2.cpp adam/kernel_avx512.cpp)
  set_source_files_properties(adam/kernel_avx2.cpp PROPERTIES COMPILE_OPTIONS "-mavx2;-mfma;-mf16c")
  # GCC 12 warns of its own intrinsics' undefined operands (its bug 105593).
  set_source_files_properties(
    adam/kernel_avx512.cpp
    PROPERTIES COMPILE_OPTIONS "-mavx512f;-mavx512bw;-mavx512vl;-mavx512dq;-mfma;-mf16c;-Wno-maybe-uninitialized")
  target_compile_definitions(zbench_core PRIVATE ZBENCH_X86)
elseif(CMAKE_SYSTEM_PROCESSOR MATCHES "^(aarch64|arm64)$")
  target_sources(zbench_core PRIVATE adam/kernel_neon.cpp)
  target_compile_definitions(zbench_core PRIVATE ZBENCH_NEON)
endif()

# ThreadSanitizer does not know libgomp's barriers, so a build for it runs the same parts on std::thread.
if(NOT ZBENCH_SANITIZE MATCHES "thread")
  find_package(OpenMP COMPONENTS CXX)
  if(OpenMP_CXX_FOUND)
    target_link_libraries(zbench_core PUBLIC OpenMP::OpenMP_CXX)
  endif()
endif()
if(ZBENCH_SANITIZE)
  target_compile_options(
    zbench_core PUBLIC -g -fno-omit-frame-pointer -fsanitize=${ZBENCH_SANITIZE} -fno-sanitize-recover=all)
  target_link_options(zbench_core PUBLIC -fsanitize=${ZBENCH_SANITIZE})
endif()
