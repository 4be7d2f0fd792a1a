// The machine's yardstick for Python: measuring releases the GIL.
#include "yardstick/yardstick.hpp"

#include <pybind11/functional.h>

#include "bindings/bindings.hpp"

namespace py = pybind11;
using zbench::Yardstick;

void bind_yardstick(py::module_& module) {
  module.attr("YARDSTICK_VERSION") = zbench::yardstick_version;
  const py::call_guard<py::gil_scoped_release> released;
  py::class_<Yardstick>(module, "Yardstick")
      .def(py::init<const std::string&, int, int, int>(), py::arg("path"), py::arg("rank"), py::arg("ranks"),
           py::arg("threads"), released)
      .def("compute", &Yardstick::compute, released)
      .def("memory", &Yardstick::memory, released)
      .def("meeting", &Yardstick::meeting, released)
      .def("slowest", &Yardstick::slowest, py::arg("work"), released)
      .def("meet", &Yardstick::meet, released);
}
