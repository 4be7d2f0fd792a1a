// The kernels: addresses and plain numbers in, nothing of torch. Tensors are checked, and kept alive, by the caller
// (zbench/engine/adam).
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include "adam/dispatch.hpp"
#include "adam/plan.hpp"
#include "adam/update.hpp"
#include "bindings/bindings.hpp"
#include "cuda/table.hpp"

namespace py = pybind11;
using namespace zbench;

namespace {

using Address = std::uintptr_t;
using SlotAddresses = std::tuple<Address, Address, Address, Address>;

template <class T = void>
T* pointer(Address address) {
  return reinterpret_cast<T*>(address);
}

Slot slot_at(const SlotAddresses& at) {
  const auto& [param, exp_avg, exp_avg_sq, max_exp_avg_sq] = at;
  return {pointer<float>(param), pointer(exp_avg), pointer(exp_avg_sq), pointer(max_exp_avg_sq)};
}

std::size_t add(Plan& plan, const SlotAddresses& from, const SlotAddresses& into, Address grad, Address param_out,
                std::int64_t numel, std::tuple<int, int, int> dtypes, std::optional<std::uint64_t> rounding_seed,
                std::uint64_t rounding_offset) {
  const auto& [grad_dtype, moment_dtype, out_dtype] = dtypes;
  Task task{};
  task.from = slot_at(from);
  task.into = std::get<0>(into) ? slot_at(into) : task.from;
  task.grad = pointer(grad);
  task.param_out = pointer(param_out);
  task.numel = numel;
  task.grad_dtype = static_cast<Dtype>(grad_dtype);
  task.moment_dtype = static_cast<Dtype>(moment_dtype);
  task.out_dtype = static_cast<Dtype>(out_dtype);
  task.stochastic = rounding_seed.has_value() && task.moment_dtype == Dtype::bfloat16;
  task.rounding_seed = rounding_seed.value_or(0);
  task.rounding_offset = rounding_offset;
  return plan.add(task);
}

// Other gradients of the same dtypes and lengths, one for each task.
void set_grads(Plan& plan, const std::vector<Address>& grads) {
  if (grads.size() != plan.tasks().size()) throw std::invalid_argument("grads: expected one for each task");
  for (std::size_t index = 0; index < grads.size(); index++) plan.set_grad(index, pointer(grads[index]));
}

std::optional<std::tuple<std::size_t, std::string, std::size_t, std::string>> find_overlap(const Plan& plan) {
  const auto found = plan.find_overlap();
  if (!found) return std::nullopt;
  return std::tuple{found->first_task, std::string(found->first_name), found->second_task,
                    std::string(found->second_name)};
}

// (dtype codes, blocks, rows, the rows' bytes) of each launch that a plan needs on a device.
py::list device_rows(const Plan& plan, double grad_scale) {
  py::list launches;
  for (const DeviceGroup& group : device_groups(plan.tasks(), grad_scale))
    launches.append(py::make_tuple(
        py::make_tuple(static_cast<int>(group.grad_dtype), static_cast<int>(group.moment_dtype),
                       static_cast<int>(group.out_dtype)),
        group.blocks, group.rows.size(),
        py::bytes(reinterpret_cast<const char*>(group.rows.data()), group.rows.size() * sizeof(DeviceTask))));
  return launches;
}

using NormAddresses = std::vector<std::tuple<Address, std::int64_t, int>>;

std::vector<NormTask> norm_tasks(const NormAddresses& grads) {
  std::vector<NormTask> tasks;
  tasks.reserve(grads.size());
  for (const auto& [grad, numel, dtype] : grads)
    tasks.push_back({pointer(grad), numel, static_cast<Dtype>(dtype)});
  return tasks;
}

py::list device_norm_rows(const NormAddresses& grads) {
  py::list launches;
  for (const DeviceNormGroup& group : device_norm_groups(norm_tasks(grads)))
    launches.append(py::make_tuple(
        py::make_tuple(static_cast<int>(group.dtype)), group.blocks, group.rows.size(),
        py::bytes(reinterpret_cast<const char*>(group.rows.data()), group.rows.size() * sizeof(DeviceNormTask))));
  return launches;
}

void run(const Plan& plan, double grad_scale, int threads) {
  const std::vector<Task> tasks = plan.tasks();  // another Python thread may change the plan meanwhile
  const py::gil_scoped_release released;
  update(tasks, grad_scale, threads);
}

void sum_squares(const NormAddresses& grads, Address sums, int threads) {
  const std::vector<NormTask> tasks = norm_tasks(grads);
  const py::gil_scoped_release released;
  square_sums(tasks, pointer<std::int64_t>(sums), threads);
}

void sum_in_order(Address out, const std::vector<Address>& parts, std::int64_t numel, int dtype, int threads) {
  if (parts.empty()) throw std::invalid_argument("parts: expected at least one");
  const std::vector<const void*> pointers = [&] {
    std::vector<const void*> all;
    for (const Address part : parts) all.push_back(pointer(part));
    return all;
  }();
  const py::gil_scoped_release released;
  sum_parts({pointer<float>(out), pointers.data(), static_cast<int>(pointers.size()), static_cast<Dtype>(dtype),
             numel},
            threads);
}

void add_rounded(Address out, Address grad, std::int64_t numel, std::tuple<int, int> dtypes, int threads) {
  const auto& [out_dtype, grad_dtype] = dtypes;
  const py::gil_scoped_release released;
  add_cast({pointer(out), pointer(grad), static_cast<Dtype>(out_dtype), static_cast<Dtype>(grad_dtype), numel},
           threads);
}

}  // namespace

void bind_adam(py::module_& module) {
  py::class_<Hyper>(module, "Hyper")
      .def(py::init<double, double, double, double, double, bool, bool>(), py::arg("lr"), py::arg("beta1"),
           py::arg("beta2"), py::arg("eps"), py::arg("weight_decay"), py::arg("bias_correction"),
           py::arg("decoupled"));
  py::class_<Plan>(module, "Plan")
      .def(py::init<>())
      .def("__len__", [](const Plan& plan) { return plan.tasks().size(); })
      .def("add", &add, py::arg("slot"), py::arg("into"), py::arg("grad"), py::arg("param_out"), py::arg("numel"),
           py::arg("dtypes"), py::arg("rounding_seed"), py::arg("rounding_offset"))
      .def("set_steps", &Plan::set_steps, py::arg("begin"), py::arg("end"), py::arg("step"), py::arg("hyper"))
      .def("set_grads", &set_grads, py::arg("grads"))
      .def("set_squares",
           [](Plan& plan, Address squares) { plan.set_squares(pointer<std::int64_t>(squares)); }, py::arg("squares"))
      .def("find_overlap", &find_overlap)
      .def("run", &run, py::arg("grad_scale"), py::arg("threads"))
      .def("device_rows", &device_rows, py::arg("grad_scale"));
  module.def("square_sums", &sum_squares, py::arg("grads"), py::arg("sums"), py::arg("threads"));
  module.def(
      "stream",
      [](const Plan& plan, int threads) {
        const py::gil_scoped_release released;
        stream(plan.tasks(), threads);
      },
      py::arg("plan"), py::arg("threads"));
  module.def(
      "read",
      [](Address from, std::int64_t numel, int dtype, int threads) {
        const py::gil_scoped_release released;
        return read({pointer(from), numel, static_cast<Dtype>(dtype)}, threads);
      },
      py::arg("from_"), py::arg("numel"), py::arg("dtype"), py::arg("threads"));
  module.def("sum_parts", &sum_in_order, py::arg("out"), py::arg("parts"), py::arg("numel"), py::arg("dtype"),
             py::arg("threads"));
  module.def("add_cast", &add_rounded, py::arg("out"), py::arg("grad"), py::arg("numel"), py::arg("dtypes"),
             py::arg("threads"));
  module.def("device_norm_rows", &device_norm_rows, py::arg("grads"));
  module.attr("EXACT_LIMBS") = exact_limbs;
  module.attr("DEVICE_BLOCK_THREADS") = device_block_threads;
  module.attr("DEVICE_NORM_THREADS") = device_norm_threads;
  module.def("available_isas", &available_isas);
  module.def("isa", [] { return std::string(kernels().name); });
  module.def("force_isa", &force_isa, py::arg("name"));
}
