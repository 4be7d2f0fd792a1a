// The Python module zbench._native; zbench/_native.pyi gives its types.
#include "bindings/bindings.hpp"

#include <pybind11/stl.h>

PYBIND11_MODULE(_native, module) {
  module.doc() = "Native Adam kernels, worker threads and the yardstick; zbench.engine.adam is Adam's typed interface.";
  bind_adam(module);
  bind_executor(module);
  bind_yardstick(module);
  module.def("device_sources", &device_sources);
}
