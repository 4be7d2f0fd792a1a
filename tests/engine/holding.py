"""What steps allocate, keep and copy, to the byte, for `test_holding`; runs inside the pool's ranks."""

import gc
import threading
import time
from collections import Counter
from collections.abc import Callable
from contextlib import nullcontext, suppress
from pathlib import Path
from typing import Any
from unittest import mock

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from tests.engine import disturbances, models
from zbench.engine import Engine, build_engine
from zbench.engine.parameters.deferred import sharded_init
from zbench.engine.transport.watching import WatchedWork
from zbench.measure.shim import SHIM
from zbench.spec.engine import EngineSpec

LAYERS, WIDTH = 12, 64


def live() -> int:
    """Return the bytes that torch holds when nothing is left in cycles."""
    gc.collect()
    return settled()


def settled() -> int:
    """Return the bytes that torch holds now, once the process groups' threads sleep: until one does, it may
    still have to give back what it sent.
    """
    assert SHIM is not None
    quiet = 0
    while quiet < 3:
        time.sleep(0.001)
        quiet = quiet + 1 if _others_sleep() else 0
    return SHIM.zbench_memory_live_bytes()


def _others_sleep() -> bool:
    """Tell whether every thread of this process but the caller waits; one without a core runs."""
    others = {*Path("/proc/self/task").iterdir()} - {Path(f"/proc/self/task/{threading.get_native_id()}")}
    with suppress(OSError):  # one ended meanwhile
        return all(") S " in (task / "stat").read_text() for task in others)
    return False


def peak_of(call: Callable[[], object]) -> int:
    """Return the most bytes that were held above those before, while `call` ran."""
    assert SHIM is not None
    before = live()
    SHIM.zbench_memory_reset_peak()
    call()
    return SHIM.zbench_memory_peak_bytes() - before


class Copies(TorchDispatchMode):
    """Counts the bytes that are copied from tensor to tensor, by operator."""

    def __init__(self) -> None:
        super().__init__()
        self.bytes: Counter[str] = Counter()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        name = func.overloadpacket.__name__
        if name in ("copy_", "clone", "_to_copy", "add_", "zero_") and isinstance(result, Tensor):
            self.bytes[name] += result.nbytes
        return result


class Layers(nn.Module):
    """Layers whose weights fill the layout without padding; each is registered as soon as it is made."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.ModuleList(nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(LAYERS))

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = layer(x)
        return x


@mock.patch.object(WatchedWork, "is_completed", mock.Mock(return_value=False))
def steps(group: dist.ProcessGroup, spec: dict[str, Any], backwards: int) -> dict[str, Any]:
    """Return what four steps of `backwards` backwards each keep, and what the last one copies. No
    reduction is completed early: how many buffers are in use at once depends on no thread's speed.
    """
    gc.collect()
    gc.freeze()  # so that to collect again is quick
    net = Layers()
    copies = Copies()
    start = live()
    engine = build_engine(net, EngineSpec.model_validate(spec), group)
    x = torch.ones(4, WIDTH)
    sizes = []
    for step in range(4):
        losses = [net(x).square().mean() for _ in range(backwards)]
        with copies if step == 3 else nullcontext():
            for k, loss in enumerate(losses):
                marks = spec.get("accumulation_mode") == "multi_backward"
                engine.backward(loss, last=(k == backwards - 1) if marks else None)
            engine.step()
        del losses, loss
        sizes.append(live() - start)
    held = engine.memory_by_category()
    engine.close()
    return {"kept": sizes, "copies": dict(copies.bytes), "held": held}


def room_for_sums(group: dist.ProcessGroup) -> list[int]:
    """Return the bytes held for sums after a forward, before each layer's backward, after it all, and after
    the step.
    """
    net = Layers()
    spec = {"zero_stage": 3, "param_persistence_threshold": 0, "overlap_comm": False}
    spec |= {"reduce_bucket_size": WIDTH * WIDTH, "prefetch_bucket_size": 1}
    engine = build_engine(net, EngineSpec.model_validate(spec), group)
    seen: list[int] = []

    def look(*_: object) -> None:
        seen.append(engine.memory_by_category().get("gradients", 0))

    for layer in net.layers:
        layer.register_forward_hook(lambda _, __, y: y.register_hook(look) and None)
    loss = net(torch.ones(4, WIDTH)).square().mean()
    look()
    engine.backward(loss)
    look()
    engine.step()
    look()
    engine.close()
    return seen


@mock.patch.object(WatchedWork, "is_completed", mock.Mock(return_value=False))
def disturbed(group: dist.ProcessGroup, spec: dict[str, Any]) -> list[int]:
    """Return the bytes held after steps in which all goes wrong that can, every time alike: no reduction is
    completed early, so pools of buffers hold the most that they ever do.
    """
    gc.collect()
    gc.freeze()
    net = models.make("odd-together")
    rank = dist.get_rank(group)
    engine = build_engine(net, EngineSpec.model_validate(spec), group)
    held = []
    everything = ",".join(disturbances.DISTURBANCES)
    for _ in range(4):
        for micro in range(2):
            data = models.batch("odd-together", 1, micro, rank)
            disturbances.disturb(everything, engine, data, first=micro == 0, last=None)
            engine.backward(models.loss(net, data))
        engine.step()
        held.append(live())
    engine.close()
    return held


def build_in_parts(group: dist.ProcessGroup, whole: bool) -> tuple[dict[str, int], dict[str, Tensor]]:
    """Return the most bytes held while a model is made (whole or in parts) and sharded, and its values."""
    spec = EngineSpec.model_validate({"zero_stage": 3, "param_persistence_threshold": 0})
    nets: list[nn.Module] = []
    engines: list[Engine] = []

    def create() -> None:
        with nullcontext() if whole else sharded_init(group):
            nets.append(Layers())

    peaks = {"created": peak_of(create)}
    peaks["built"] = peak_of(lambda: engines.append(build_engine(nets[0], spec, group)))
    values = engines[0].full_parameters()
    engines[0].close()
    return peaks, values
