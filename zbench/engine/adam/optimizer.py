"""The update as torch's users call it: CpuAdam, an optimizer of torch, and adam_step_, one plain function."""

from collections.abc import Callable, Iterable
from functools import partial
from typing import Any, overload

import torch
from torch import Tensor

from zbench.engine.adam.contract import (
    AdamTask,
    Hyper,
    Slot,
    as_given,
    check_grad_scale,
    check_hyper,
    check_tasks,
    hyper_of,
)
from zbench.engine.adam.cuda import cuda_adam
from zbench.engine.adam.native import Flat, NativeAdam, PlanCache, call_native

Entry = tuple[int, Tensor, dict[str, Any]]
"""(index of the group, parameter, its optimizer state)"""


class CpuAdam(torch.optim.Optimizer):
    """Adam or AdamW for parameters on the CPU: torch's fused bits, one parallel region for all tensors.

    params: tensors or group dictionaries, contiguous, float32, bfloat16 or float16. Those in 16 bits get
    float32 master weights (state key `master`) and are rounded from them after each step. Moments are
    float32.
    decoupled: AdamW, else Adam with L2 decay. bias_correction, amsgrad, decoupled and all other
    hyperparameters may differ between groups and change between steps. State keys are torch's, with `step`
    as int. ValueError names what is wrong, before anything is updated.
    """

    def __init__(
        self,
        params: Iterable[Tensor] | Iterable[dict[str, Any]],
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.0,
        bias_correction: bool = True,
        amsgrad: bool = False,
        decoupled: bool = True,
    ) -> None:
        defaults = {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay}
        defaults |= {"bias_correction": bias_correction, "amsgrad": amsgrad, "decoupled": decoupled}
        super().__init__(params, defaults)
        self._plans = PlanCache("cpu")
        for group in self.param_groups:
            _hyper(group)

    @overload
    def step(self, closure: None = None, *, grad_scale: float = 1.0) -> None: ...
    @overload
    def step(self, closure: Callable[[], float], *, grad_scale: float = 1.0) -> float: ...
    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None, *, grad_scale: float = 1.0) -> float | None:
        """Update every parameter that has a gradient, each multiplied once by float32(grad_scale)."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        check_grad_scale(grad_scale)
        hypers = [_hyper(group) for group in self.param_groups]
        entries = [
            (index, parameter, self._state_of(parameter, group["amsgrad"]))
            for index, group in enumerate(self.param_groups)
            for parameter in group["params"]
            if parameter.grad is not None
        ]
        if entries:
            self._update(entries, hypers, grad_scale)
        return loss

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load a state of this class or of torch.optim.Adam(W); moments and masters keep their own dtype."""
        super().load_state_dict(state_dict)
        self._plans = PlanCache("cpu")  # new state may lie where the old one lay
        saved = [key for group in state_dict["param_groups"] for key in group["params"]]
        parameters = [parameter for group in self.param_groups for parameter in group["params"]]
        for key, parameter in zip(saved, parameters, strict=True):
            for name, value in state_dict["state"].get(key, {}).items():
                if name == "step":
                    self.state[parameter][name] = int(value)
                elif isinstance(value, Tensor):  # torch's own loading casts to the parameter's dtype
                    self.state[parameter][name] = value.detach().clone(memory_format=torch.contiguous_format)

    def _update(self, entries: list[Entry], hypers: list[Hyper], grad_scale: float) -> None:
        grads = [parameter.grad for _, parameter, _ in entries if parameter.grad is not None]
        if any(grad.layout is not torch.strided for grad in grads):
            raise ValueError("grad: expected dense gradients, got sparse ones")
        amsgrads = [group["amsgrad"] for group in self.param_groups]
        tasks = partial(_checked_tasks, entries, amsgrads, hypers)

        def run() -> None:
            fixed = [parameter for _, parameter, _ in entries]
            fixed += [value for *_, state in entries for value in state.values() if type(value) is not int]
            key = [amsgrads, [index for index, *_ in entries], list(map(Tensor.data_ptr, fixed))]
            steps = ((state["step"] + 1, hypers[index]) for index, _, state in entries)
            plan = self._plans.plan(Flat(grads, grads, key), tasks, steps)
            plan.run(grad_scale=grad_scale, threads=torch.get_num_threads())

        call_native(run, grads, tasks)
        for *_, state in entries:
            state["step"] += 1

    def _state_of(self, parameter: Tensor, amsgrad: bool) -> dict[str, Any]:
        state: dict[str, Any] = self.state[parameter]
        if not state:
            state["step"] = 0
            state["exp_avg"] = torch.zeros_like(parameter, dtype=torch.float32)
            state["exp_avg_sq"] = torch.zeros_like(parameter, dtype=torch.float32)
        if amsgrad and "max_exp_avg_sq" not in state:
            state["max_exp_avg_sq"] = torch.zeros_like(parameter, dtype=torch.float32)
        if parameter.dtype is not torch.float32 and "master" not in state:
            state["master"] = parameter.detach().float()
        return state


def adam_step_(
    param: Tensor,
    grad: Tensor,
    exp_avg: Tensor,
    exp_avg_sq: Tensor,
    *,
    step: int,
    lr: float,
    betas: tuple[float, float],
    eps: float,
    weight_decay: float,
    bias_correction: bool = True,
    decoupled: bool = True,
    max_exp_avg_sq: Tensor | None = None,
    grad_scale: float = 1.0,
    param_out: Tensor | None = None,
) -> None:
    """Update param, exp_avg, exp_avg_sq (and max_exp_avg_sq: AMSGrad) in place, as torch's fused Adam(W).

    param: float32 master weights of any shape, contiguous; the others have its shape. exp_avg, exp_avg_sq,
    max_exp_avg_sq: float32 or bfloat16. grad: float32, bfloat16 or float16; it is multiplied once by
    float32(grad_scale), which unscales and clips. param_out: receives the new parameters in its own dtype.
    step: 1 for the first update. decoupled: AdamW, else Adam with L2 decay. All on one CPU or CUDA device.

    ValueError names the argument that is wrong; then nothing has been written.
    """
    tensors: dict[str, Tensor | None] = {
        "param": param,
        "grad": grad,
        "exp_avg": exp_avg,
        "exp_avg_sq": exp_avg_sq,
    }
    tensors |= {"max_exp_avg_sq": max_exp_avg_sq, "param_out": param_out}
    flat = {name: _flat(name, tensor, param) for name, tensor in tensors.items() if tensor is not None}
    slot = Slot(flat["param"], flat["exp_avg"], flat["exp_avg_sq"], flat.get("max_exp_avg_sq"))
    hyper = Hyper(lr, betas[0], betas[1], eps, weight_decay, bias_correction, decoupled)
    task = AdamTask(slot, flat["grad"], step, hyper, param_out=flat.get("param_out"))
    backend = cuda_adam() if param.is_cuda else NativeAdam()
    try:
        backend.update([task], grad_scale=grad_scale)
    except ValueError as error:
        raise ValueError(as_given(str(error))) from None


def _hyper(group: dict[str, Any]) -> Hyper:
    hyper = hyper_of(group)
    try:
        check_hyper(hyper)
    except ValueError as error:
        raise ValueError(as_given(str(error))) from None
    return hyper


def _task(parameter: Tensor, state: dict[str, Any], hyper: Hyper, *, amsgrad: bool) -> AdamTask:
    assert parameter.grad is not None
    master = state.get("master", parameter)
    slot = Slot(
        _flat("param", master, parameter),
        _flat("exp_avg", state["exp_avg"], parameter),
        _flat("exp_avg_sq", state["exp_avg_sq"], parameter),
        _flat("max_exp_avg_sq", state["max_exp_avg_sq"], parameter) if amsgrad else None,
    )
    out = None if master is parameter else _flat("param", parameter, parameter)
    grad = _flat("grad", parameter.grad, parameter)
    return AdamTask(slot, grad, state["step"] + 1, hyper, param_out=out)


def _flat(name: str, tensor: Tensor, param: Tensor) -> Tensor:
    if tensor.shape != param.shape:
        raise ValueError(f"{name}: expected param's shape {list(param.shape)}, got {list(tensor.shape)}")
    if tensor.layout is not torch.strided or not tensor.is_contiguous():
        raise ValueError(
            f"{name}: expected a contiguous dense tensor, got {tensor.layout}; pass .contiguous()"
        )
    return tensor.detach().view(-1)


def _checked_tasks(entries: list[Entry], amsgrads: list[bool], hypers: list[Hyper]) -> list[AdamTask]:
    """Return the tasks of the entries; ValueError where one cannot be updated."""
    tasks = [
        _task(parameter, state, hypers[index], amsgrad=amsgrads[index]) for index, parameter, state in entries
    ]
    for task, (index, parameter, _) in zip(tasks, entries, strict=True):
        try:
            check_tasks([task], "cpu")
        except ValueError as error:
            where = f"group {index}, parameter {list(parameter.shape)}"
            raise ValueError(f"{where}: {as_given(str(error))}") from None
    return tasks
