"""CpuAdam: the native update as a torch.optim.Optimizer."""

from collections.abc import Callable, Iterable
from functools import partial
from typing import Any, overload

import torch
from torch import Tensor

from zbench.engine.adam.checks import as_given, check_grad_scale, check_hyper
from zbench.engine.adam.contract import Hyper, hyper_of
from zbench.engine.adam.ops import call_native
from zbench.engine.adam.pointers import Pointers, checked_tasks, grads_of


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
        self._pointers: Pointers | None = None
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
        self._pointers = None
        saved = [key for group in state_dict["param_groups"] for key in group["params"]]
        parameters = [parameter for group in self.param_groups for parameter in group["params"]]
        for key, parameter in zip(saved, parameters, strict=True):
            for name, value in state_dict["state"].get(key, {}).items():
                if name == "step":
                    self.state[parameter][name] = int(value)
                elif isinstance(value, Tensor):  # torch's own loading casts to the parameter's dtype
                    self.state[parameter][name] = value.detach().clone(memory_format=torch.contiguous_format)

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

    def _update(
        self, entries: list[tuple[int, Tensor, dict[str, Any]]], hypers: list[Hyper], grad_scale: float
    ) -> None:
        amsgrads = [group["amsgrad"] for group in self.param_groups]

        def run() -> None:
            if self._pointers is None or not self._pointers.still_hold(entries, amsgrads):
                self._pointers = Pointers(entries, amsgrads, hypers)
            self._pointers.run([state["step"] + 1 for _, _, state in entries], hypers, grad_scale)

        call_native(run, grads_of(entries), partial(checked_tasks, entries, amsgrads, hypers))
        for _, _, state in entries:
            state["step"] += 1


def _hyper(group: dict[str, Any]) -> Hyper:
    hyper = hyper_of(group)
    try:
        check_hyper(hyper)
    except ValueError as error:
        raise ValueError(as_given(str(error))) from None
    return hyper
