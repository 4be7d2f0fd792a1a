"""How near the Adam update is to the memory bound, and how it stands beside torch's and DeepSpeed's.

All contenders of a table take turns in one process, so that what disturbs one disturbs all; medians are
compared. The bound is the same bytes moved by a hand-written loop with next to no arithmetic
(`csrc/adam/vector_stream.hpp`). Run by `zbench bench adam` as a child process, which may be another
interpreter: `main(options)` prints one JSON.

Tables: `plain` (float32 step, 28 bytes a parameter), `phase` (bfloat16 gradients: norm, clip, update,
bfloat16 parameters out; 30 bytes fused), `phase_bf16_moments` (22 bytes) and `many` (2,000 tensors of 10 k
elements).
"""

import json
import platform
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from zbench import _native
from zbench.engine.adam import AdamTask, CpuAdam, Hyper, NativeAdam, Slot
from zbench.engine.adam.plan import DTYPE_CODES, build_plan

HYPER = Hyper(lr=1e-3, beta1=0.9, beta2=0.999, eps=1e-8, weight_decay=0.01)
MAX_NORM = 1.0
Contenders = dict[str, Callable[[], object]]


@dataclass(frozen=True, slots=True)
class Options:
    """What to measure: `sizes` in parameters, `threads` to use in turn, `rounds` of turns, peer or not."""

    sizes: list[int]
    threads: list[int]
    rounds: int
    deepspeed: bool = False


class Prepared:
    """A native plan that keeps its tensors alive, for a number of threads."""

    def __init__(self, task: AdamTask, threads: int) -> None:
        self._task, self._plan, self._threads = task, build_plan([task]), threads

    def update(self, grad_scale: float = 1.0) -> None:
        """Run zbench's update."""
        self._plan.run(grad_scale=grad_scale, threads=self._threads)

    def stream(self) -> None:
        """Move the same bytes with next to no arithmetic."""
        _native.stream(self._plan, self._threads)


def _slot(numel: int, moments: torch.dtype = torch.float32) -> Slot:
    param = torch.full((numel,), 0.01)
    return Slot(param, torch.zeros(numel, dtype=moments), torch.zeros(numel, dtype=moments))


def _clip(norm: float) -> float:
    return min(1.0, MAX_NORM / (norm + 1e-6))


def deepspeed_optimizer(params: list[torch.nn.Parameter]) -> Any:
    """Return DeepSpeedCPUAdam as AdamW with the benchmark's hyperparameters; built on first use."""
    from deepspeed.ops.adam import DeepSpeedCPUAdam

    return DeepSpeedCPUAdam(params, lr=HYPER.lr, weight_decay=HYPER.weight_decay, adamw_mode=True)


def _torch_optimizer(
    params: list[torch.nn.Parameter], *, fused: bool = False, foreach: bool = False
) -> torch.optim.Optimizer:
    decay = HYPER.weight_decay
    return torch.optim.AdamW(params, lr=HYPER.lr, weight_decay=decay, fused=fused, foreach=foreach)


def plain(numel: int, threads: int, deepspeed: bool) -> Contenders:
    """One float32 step of one tensor."""
    grad = torch.full((numel,), 1e-3)
    ours, bound = (Prepared(AdamTask(_slot(numel), grad, 5, HYPER), threads) for _ in range(2))

    def parameter() -> torch.nn.Parameter:
        param = torch.nn.Parameter(torch.full((numel,), 0.01))
        param.grad = grad
        return param

    contenders: Contenders = {
        "bound": bound.stream,
        "zbench": ours.update,
        "torch fused": _torch_optimizer([parameter()], fused=True).step,
        "torch foreach": _torch_optimizer([parameter()], foreach=True).step,
    }
    if deepspeed:
        contenders["deepspeed"] = deepspeed_optimizer([parameter()]).step
    return contenders


def phase(numel: int, threads: int, deepspeed: bool, moments: torch.dtype = torch.float32) -> Contenders:
    """bfloat16 gradients to bfloat16 parameters: norm, clip, update, cast."""
    grad, out = torch.full((numel,), 1e-3).bfloat16(), torch.zeros(numel, dtype=torch.bfloat16)
    sums = torch.zeros(-(-numel // 256), dtype=torch.float64)
    adam, code = NativeAdam(threads), DTYPE_CODES[torch.bfloat16]
    plan, bound = (
        Prepared(AdamTask(_slot(numel, moments), grad, 5, HYPER, param_out=out), threads) for _ in range(2)
    )

    def stream() -> None:
        _native.read(grad.data_ptr(), numel, code, threads)
        bound.stream()

    def ours() -> None:
        adam.chunk_square_sums([grad], [sums])
        plan.update(_clip(sums.sum().sqrt().item()))

    wide = torch.zeros(numel)
    contenders: Contenders = {
        "bound": stream,
        "zbench": ours,
        "torch fused": _book_phase(grad, wide, out, lambda params: _torch_optimizer(params, fused=True)),
        "torch fused, fewest passes": _short_phase(grad, wide, out),
    }
    if deepspeed:
        contenders["deepspeed"] = _book_phase(grad, wide, out, deepspeed_optimizer)
    return contenders


def _book_phase(
    grad: Tensor, wide: Tensor, out: Tensor, make: Callable[[list[torch.nn.Parameter]], Any]
) -> Callable[[], object]:
    """Cast the gradient up, take its norm, scale it, step, cast the parameters down: about 52 bytes each."""
    param = torch.nn.Parameter(torch.full((grad.numel(),), 0.01))
    param.grad = wide
    optimizer = make([param])

    def run() -> None:
        wide.copy_(grad)
        wide.mul_(_clip(torch.linalg.vector_norm(wide).item()))
        optimizer.step()
        out.copy_(param.detach())

    return run


def _short_phase(grad: Tensor, wide: Tensor, out: Tensor) -> Callable[[], object]:
    """The same with torch's best: the norm from bfloat16, and cast and clip in one multiplication."""
    param = torch.nn.Parameter(torch.full((grad.numel(),), 0.01))
    param.grad = wide
    optimizer = _torch_optimizer([param], fused=True)

    def run() -> None:
        norm = torch.linalg.vector_norm(grad, dtype=torch.float32).item()
        torch.mul(grad, torch.tensor(_clip(norm)), out=wide)
        optimizer.step()
        out.copy_(param.detach())

    return run


def many(count: int, numel: int, deepspeed: bool) -> Contenders:
    """One step of an optimizer with many small tensors."""

    def parameters() -> list[torch.nn.Parameter]:
        params = [torch.nn.Parameter(torch.full((numel,), 0.01)) for _ in range(count)]
        for param in params:
            param.grad = torch.full((numel,), 1e-3)
        return params

    contenders: Contenders = {
        "zbench": CpuAdam(parameters(), weight_decay=HYPER.weight_decay).step,
        "torch fused": _torch_optimizer(parameters(), fused=True).step,
        "torch foreach": _torch_optimizer(parameters(), foreach=True).step,
    }
    if deepspeed:
        contenders["deepspeed"] = deepspeed_optimizer(parameters()).step
    return contenders


def take_turns(contenders: Contenders, rounds: int) -> dict[str, list[float]]:
    """Return seconds of each contender's calls: `rounds` turns, after two that are not counted."""
    seconds: dict[str, list[float]] = {name: [] for name in contenders}
    for turn in range(rounds + 2):
        for name, call in contenders.items():
            begin = time.perf_counter()
            call()
            elapsed = time.perf_counter() - begin
            if turn >= 2:
                seconds[name].append(elapsed)
    return seconds


def table(name: str, numel: int, threads: int, options: Options) -> dict[str, Any]:
    """Measure one table at one size; returns medians, raw samples and zbench's ratios against the others."""
    torch.set_num_threads(threads)
    makers: dict[str, Callable[[], Contenders]] = {
        "plain": lambda: plain(numel, threads, options.deepspeed),
        "phase": lambda: phase(numel, threads, options.deepspeed),
        "phase_bf16_moments": lambda: phase(numel, threads, options.deepspeed, torch.bfloat16),
        "many": lambda: many(numel // 10_000, 10_000, options.deepspeed),
    }
    rounds = options.rounds if numel > 100_000 else options.rounds * 20
    seconds = take_turns(makers[name](), rounds)
    medians = {contender: statistics.median(samples) for contender, samples in seconds.items()}
    return {
        "table": name,
        "numel": numel,
        "threads": threads,
        "median_seconds": medians,
        "zbench_speedup": {
            other: medians[other] / medians["zbench"] for other in medians if other != "zbench"
        },
        "seconds": seconds,
    }


def measure(options: Options) -> dict[str, Any]:
    """Measure every table at every size and thread count; returns one JSON document."""
    tables = [
        table(name, numel, threads, options)
        for threads in options.threads
        for numel in options.sizes
        for name in ("plain", "phase", "phase_bf16_moments")
    ]
    if max(options.sizes) >= 1_000_000:
        tables += [table("many", 20_000_000, threads, options) for threads in options.threads]
    return {
        "schema_version": 1,
        "machine": platform.machine(),
        "torch": torch.__version__,
        "isa": _native.isa(),
        "rounds": options.rounds,
        "tables": tables,
    }


def main(options: str) -> None:
    """Print the measurements that the JSON options ask for."""
    print(json.dumps(measure(Options(**json.loads(options)))))
