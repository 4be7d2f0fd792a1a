"""The contenders of `tools.benchmarks.adam`: callables that do the same work on the same memory.

All contenders of a table update one set of tensors in turn, so no placement in memory favours one of them. A
torch or DeepSpeed optimizer is given these tensors as its state before its first step.
"""

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from zbench import _native
from zbench.engine.adam import AdamBackend, AdamTask, CpuAdam, Hyper, NativeAdam, Slot, cuda_adam
from zbench.engine.adam.exact_sum import exact_zero, rounded
from zbench.engine.adam.native import DTYPE_CODES, build_plan

HYPER = Hyper(lr=1e-3, beta1=0.9, beta2=0.999, eps=1e-8, weight_decay=0.01)
MAX_NORM = 1e-3  # below every norm here, so that clipping is always on
GRAD = 1e-3
Contenders = dict[str, Callable[[], object]]
MakeOptimizer = Callable[[list[torch.nn.Parameter]], Any]


@dataclass(frozen=True, slots=True)
class AdamPlace:
    """Where a table is measured: `threads` is 0 on a CUDA device."""

    device: torch.device
    threads: int = 0
    deepspeed: bool = False

    @property
    def backend(self) -> AdamBackend:
        """zbench's update there."""
        return cuda_adam() if self.device.type == "cuda" else NativeAdam(self.threads)


@dataclass(slots=True)
class Buffers:
    """What the contenders of one table share: float32 state of `numel` parameters."""

    numel: int
    device: torch.device
    param: Tensor = field(init=False)
    exp_avg: Tensor = field(init=False)
    exp_avg_sq: Tensor = field(init=False)
    wide: Tensor = field(init=False)

    def __post_init__(self) -> None:
        self.param, self.exp_avg, self.exp_avg_sq, self.wide = (
            torch.full((self.numel,), value, device=self.device) for value in (0.01, 0.0, 0.0, GRAD)
        )

    def slot(self, moments: torch.dtype = torch.float32) -> Slot:
        """Return the state, or the parameters with zero moments of another dtype."""
        if moments is torch.float32:
            return Slot(self.param, self.exp_avg, self.exp_avg_sq)
        return Slot(self.param, *(torch.zeros_like(self.param, dtype=moments) for _ in range(2)))

    def cut(self, count: int) -> Iterable[tuple[Tensor, Tensor, Tensor, Tensor]]:
        """Return (param, grad, exp_avg, exp_avg_sq) of `count` equal parts."""
        tensors = (self.param, self.wide, self.exp_avg, self.exp_avg_sq)
        return zip(*(tensor.chunk(count) for tensor in tensors), strict=True)

    def optimizer(self, make: MakeOptimizer, count: int = 1) -> Any:
        """Return an optimizer of `count` parameters that updates this memory."""
        parts = list(self.cut(count))
        params = [torch.nn.Parameter(param) for param, _, _, _ in parts]
        optimizer = make(params)
        torchs = isinstance(optimizer, torch.optim.AdamW)
        for param, (_, grad, exp_avg, exp_avg_sq) in zip(params, parts, strict=True):
            param.grad = grad
            step = torch.tensor(4.0, device=self.device) if torchs else 4
            optimizer.state[param] = {"step": step, "exp_avg": exp_avg, "exp_avg_sq": exp_avg_sq}
        return optimizer


def torch_fused(params: list[torch.nn.Parameter]) -> torch.optim.AdamW:
    """Return torch's fused AdamW with the benchmark's hyperparameters."""
    return torch.optim.AdamW(params, lr=HYPER.lr, weight_decay=HYPER.weight_decay, fused=True)


def deepspeed_optimizer(params: list[torch.nn.Parameter]) -> Any:
    """Return DeepSpeedCPUAdam as AdamW with the benchmark's hyperparameters; compiled on first use."""
    from deepspeed.ops.adam import DeepSpeedCPUAdam

    return DeepSpeedCPUAdam(params, lr=HYPER.lr, weight_decay=HYPER.weight_decay, adamw_mode=True)


def zbench_optimizer(params: list[torch.nn.Parameter]) -> CpuAdam:
    """Return zbench's optimizer."""
    return CpuAdam(params, lr=HYPER.lr, weight_decay=HYPER.weight_decay)


def plain(shared: Buffers, place: AdamPlace) -> Contenders:
    """One float32 step of one tensor."""
    task = AdamTask(shared.slot(), shared.wide, 5, HYPER)
    contenders: Contenders = {"bound": _bound(task, place, 28)}
    if place.device.type == "cuda":
        backend = place.backend
        contenders["zbench"] = lambda: backend.update([task])
    else:
        contenders["zbench"] = shared.optimizer(zbench_optimizer).step
    contenders["torch fused"] = shared.optimizer(torch_fused).step
    if place.deepspeed:
        contenders["deepspeed"] = shared.optimizer(deepspeed_optimizer).step
    return contenders


def phase(shared: Buffers, place: AdamPlace, moments: torch.dtype = torch.float32) -> Contenders:
    """bfloat16 gradients to bfloat16 parameters: norm, clip, update, cast. The peers' moments are float32."""
    grad = shared.wide.bfloat16()
    out = torch.zeros_like(grad)
    task = AdamTask(shared.slot(moments), grad, 5, HYPER, param_out=out)
    sums = exact_zero(place.device)
    backend = place.backend

    def ours() -> None:
        backend.add_square_sums([grad], sums.zero_())
        backend.update([task], grad_scale=_clip(math.sqrt(rounded(sums.tolist()))))

    bytes_each = 30 if moments is torch.float32 else 22
    contenders: Contenders = {"bound": _bound(task, place, bytes_each), "zbench": ours}
    fused = shared.optimizer(torch_fused)
    contenders["torch fused by the book"] = _step_by_step(shared, grad, out, fused, shared.wide)
    contenders["torch fused, narrow norm"] = _step_by_step(shared, grad, out, fused, grad)
    contenders["torch fused, scaled inside"] = _scaled_inside(shared, grad, out, fused)
    if place.device.type == "cpu":
        contenders["torch blocked by hand"] = _blocked(shared, grad, out)
    if place.deepspeed:
        optimizer = shared.optimizer(deepspeed_optimizer)
        contenders["deepspeed by the book"] = _step_by_step(shared, grad, out, optimizer, shared.wide)
        contenders["deepspeed, narrow norm"] = _step_by_step(shared, grad, out, optimizer, grad)
    return contenders


def many(shared: Buffers, place: AdamPlace, count: int) -> Contenders:
    """One float32 step of an optimizer with `count` small tensors."""
    if place.device.type == "cuda":
        backend = place.backend
        tasks = [AdamTask(Slot(p, m, v), g, 5, HYPER) for p, g, m, v in shared.cut(count)]
        contenders: Contenders = {"zbench": lambda: backend.update(tasks)}
    else:
        contenders = {"zbench": shared.optimizer(zbench_optimizer, count).step}
    contenders["torch fused"] = shared.optimizer(torch_fused, count).step
    if place.deepspeed:
        contenders["deepspeed"] = shared.optimizer(deepspeed_optimizer, count).step
    return contenders


def _bound(task: AdamTask, place: AdamPlace, bytes_each: int) -> Callable[[], object]:
    """Move the bytes of the update, and read the gradients for the norm where there is one."""
    if place.device.type == "cuda":
        half = task.grad.numel() * bytes_each // 2  # a copy reads and writes
        source, target = (torch.zeros(half, dtype=torch.uint8, device=place.device) for _ in range(2))
        return lambda: target.copy_(source)
    plan = build_plan([task])
    threads = place.threads
    address = task.grad.data_ptr()
    numel = task.grad.numel()
    code = DTYPE_CODES[task.grad.dtype]

    def stream(keep: AdamTask = task) -> None:
        if keep.param_out is not None:
            _native.read(address, numel, code, threads)
        _native.stream(plan, threads)

    return stream


def _clip(norm: float) -> float:
    return min(1.0, MAX_NORM / (norm + 1e-6))


def _step_by_step(
    shared: Buffers, grad: Tensor, out: Tensor, optimizer: Any, measured: Tensor
) -> Callable[[], object]:
    """Cast up, norm, scale, step, cast down: 6 + 4 + 8 + 28 + 6 = 52 bytes a parameter.

    measured: of which gradients the norm is taken; 50 bytes for the bfloat16 ones, as `clip_grad_norm_` does.
    """
    wide, param = shared.wide, shared.param

    def run() -> None:
        wide.copy_(grad)
        wide.mul_(_clip(torch.linalg.vector_norm(measured).item()))
        optimizer.step()
        out.copy_(param)

    return run


def _scaled_inside(shared: Buffers, grad: Tensor, out: Tensor, optimizer: Any) -> Callable[[], object]:
    """The fused kernel divides by the factor itself, and writes the gradient back: 46 bytes."""
    wide, param = shared.wide, shared.param
    scale = torch.ones((), device=wide.device)

    def run() -> None:
        scale.fill_(1.0 / _clip(torch.linalg.vector_norm(grad).item()))
        wide.copy_(grad)
        optimizer.grad_scale = scale
        optimizer.step()
        optimizer.grad_scale = None
        out.copy_(param)

    return run


def _blocked(shared: Buffers, grad: Tensor, out: Tensor, block: int = 1 << 19) -> Callable[[], object]:
    """What torch could do at best: blocks that stay in the cache, through its private function."""
    step = torch.tensor(5.0)
    tensors = (shared.param, shared.exp_avg, shared.exp_avg_sq, grad, out)
    blocks = list(zip(*(torch.split(tensor, block) for tensor in tensors), strict=True))
    scratch = torch.empty(min(block, shared.numel))

    def run() -> None:
        factor = _clip(torch.linalg.vector_norm(grad).item())
        for param, exp_avg, exp_avg_sq, narrow, target in blocks:
            wide = scratch[: param.numel()]
            wide.copy_(narrow).mul_(factor)
            torch._fused_adamw_(
                [param],
                [wide],
                [exp_avg],
                [exp_avg_sq],
                [],
                [step],
                lr=HYPER.lr,
                beta1=HYPER.beta1,
                beta2=HYPER.beta2,
                eps=HYPER.eps,
                weight_decay=HYPER.weight_decay,
                amsgrad=False,
                maximize=False,
            )
            target.copy_(param)

    return run
