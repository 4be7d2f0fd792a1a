# What runs on CUDA is compiled on the machine that has the device, by NVRTC (zbench/engine/adam/nvrtc.py): the module holds
# its text. DEVICE_SOURCES is the file with it.
file(GLOB units RELATIVE ${CMAKE_CURRENT_SOURCE_DIR} CONFIGURE_DEPENDS cuda/*.cu)
set(files
    adam/definition.hpp adam/exact_sum.hpp adam/rounding.hpp adam/types.hpp
    cuda/kernels.cuh cuda/rows.hpp cuda/standard.hpp ${units})
set(texts "")
foreach(name IN LISTS files)
  file(READ ${CMAKE_CURRENT_SOURCE_DIR}/${name} text)
  string(APPEND texts "    {\"${name}\", R\"text(${text})text\"},\n")
endforeach()
set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${files})
set(DEVICE_SOURCES ${CMAKE_CURRENT_BINARY_DIR}/device_sources.cpp)
file(
  CONFIGURE
  OUTPUT ${DEVICE_SOURCES}
  CONTENT
    "#include \"bindings/bindings.hpp\"\n
const std::map<std::string, std::string>& device_sources() {
  static const std::map<std::string, std::string> texts{\n${texts}  };
  return texts;
}
"
  @ONLY)
