#pragma once
#include <pybind11/pybind11.h>

#include <map>
#include <string>

void bind_adam(pybind11::module_& module);
void bind_executor(pybind11::module_& module);
void bind_yardstick(pybind11::module_& module);

// The text of what runs on CUDA, by its path in csrc; cmake/device_sources.cmake writes the function.
const std::map<std::string, std::string>& device_sources();
