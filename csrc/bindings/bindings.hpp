#pragma once
#include <pybind11/pybind11.h>

void bind_adam(pybind11::module_& module);
void bind_executor(pybind11::module_& module);
void bind_yardstick(pybind11::module_& module);
