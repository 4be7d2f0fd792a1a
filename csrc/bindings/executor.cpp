// Worker threads for Python: waiting releases the GIL and still answers Ctrl-C.
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include "adam/plan.hpp"
#include "bindings/bindings.hpp"
#include "executor/executor.hpp"

namespace py = pybind11;
using namespace zbench;

namespace {

using Seconds = std::optional<double>;
using Clock = std::chrono::steady_clock;

void wait(Executor& executor, Executor::Ticket ticket, Seconds timeout) {
  constexpr std::chrono::nanoseconds slice = std::chrono::milliseconds(50);
  const auto begin = Clock::now();
  while (true) {
    auto patience = slice;
    if (timeout) {
      const std::chrono::duration<double> left = std::chrono::duration<double>(*timeout) - (Clock::now() - begin);
      patience = std::clamp(std::chrono::duration_cast<std::chrono::nanoseconds>(left),
                            std::chrono::nanoseconds::zero(), slice);
    }
    const bool last = patience < slice;
    try {
      const py::gil_scoped_release released;
      return executor.wait(ticket, patience);
    } catch (const UpdateTimeout&) {
      if (last) throw;
    }
    if (PyErr_CheckSignals() != 0) throw py::error_already_set();
  }
}

}  // namespace

void bind_executor(py::module_& module) {
  py::register_exception<UpdateFailed>(module, "UpdateFailed", PyExc_RuntimeError);
  py::register_exception<UpdateTimeout>(module, "UpdateTimeout", PyExc_TimeoutError);
  py::class_<Gate, std::shared_ptr<Gate>>(module, "Gate")
      .def(py::init<>())
      .def("open", &Gate::open, py::call_guard<py::gil_scoped_release>())
      .def("fail", &Gate::fail, py::arg("why"), py::call_guard<py::gil_scoped_release>())
      .def("outcome", &Gate::outcome);
  py::class_<Executor>(module, "Executor")
      .def(py::init<int, const std::vector<int>&>(), py::arg("threads"), py::arg("affinity"))
      .def(
          "submit",
          [](Executor& executor, const Plan& plan, double grad_scale, std::shared_ptr<Gate> after) {
            return executor.submit(plan.tasks(), grad_scale, std::move(after));
          },
          py::arg("plan"), py::arg("grad_scale"), py::arg("after"))
      .def("wait", &wait, py::arg("ticket"), py::arg("timeout"))
      .def("done", &Executor::done, py::arg("ticket"))
      .def("cancel", &Executor::cancel, py::arg("ticket"))
      .def("close", &Executor::close, py::call_guard<py::gil_scoped_release>());
}
