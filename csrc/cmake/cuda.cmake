# What runs on CUDA is a library of its own with a C interface, loaded only when it is used; the CUDA runtime is linked
# statically, so it loads (and reports that there is no device) on machines without a GPU.

if(ZBENCH_CUDA STREQUAL "OFF")
  return()
endif()
include(CheckLanguage)
check_language(CUDA)
if(NOT CMAKE_CUDA_COMPILER)
  if(ZBENCH_CUDA STREQUAL "ON")
    message(FATAL_ERROR "ZBENCH_CUDA=ON but no CUDA compiler was found; put nvcc on PATH or set ZBENCH_CUDA=OFF")
  endif()
  message(STATUS "zbench: no CUDA compiler, the CUDA kernels are not built")
  return()
endif()

if(NOT DEFINED CMAKE_CUDA_ARCHITECTURES)
  # Code for each takes most of a minute to compile. Without a GPU to build for: PTX, which the driver translates for
  # any GPU from compute capability 7.5 on when it first loads it. A wheel for many names them:
  # -C cmake.define.CMAKE_CUDA_ARCHITECTURES="75-real;80-real;90;100-real;120"
  execute_process(COMMAND nvidia-smi -L OUTPUT_QUIET ERROR_QUIET RESULT_VARIABLE zbench_no_gpu)
  if(zbench_no_gpu)
    set(CMAKE_CUDA_ARCHITECTURES 75-virtual)
  else()
    set(CMAKE_CUDA_ARCHITECTURES native)
  endif()
endif()
enable_language(CUDA)
set(CMAKE_CUDA_STANDARD 17)
add_library(_cuda MODULE cuda/adam.cu cuda/yardstick.cu)
set_target_properties(_cuda PROPERTIES PREFIX "" CUDA_RUNTIME_LIBRARY Static)
target_include_directories(_cuda PRIVATE ${CMAKE_CURRENT_SOURCE_DIR})
target_compile_options(
  _cuda PRIVATE $<$<COMPILE_LANGUAGE:CUDA>:-O3 --fmad=false --ftz=false --prec-div=true --prec-sqrt=true>)
install(TARGETS _cuda DESTINATION zbench)
