// The Python module zbench._native; zbench/_native.pyi gives its types.
#include "bindings/bindings.hpp"

PYBIND11_MODULE(_native, module) {
  module.doc() = "Native Adam kernels and worker threads; zbench.engine.adam is the typed interface.";
  bind_adam(module);
  bind_executor(module);
}
