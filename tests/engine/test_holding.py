"""No step keeps, allocates or copies more than it must, to the byte; nothing leaks into the next one."""

import gc
from collections import Counter
from contextlib import nullcontext
from typing import Any
from unittest import mock

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from tests.engine import cases, models
from tests.engine.holding import live, peak_of
from tests.engine.lattice import EVERY_ROW, SIZES, rows_of
from zbench.engine import Engine, build_engine
from zbench.engine.parameters.deferred import sharded_init
from zbench.engine.transport.watching import WatchedWork
from zbench.spec.engine import EngineSpec
from zbench.testing.ranks import RankPool

LAYERS, WIDTH = 12, 64
WHOLE = 4 * LAYERS * WIDTH * WIDTH
"""Bytes of the model, and of its gradients."""
PART = WHOLE // 2
TERMS = 13
"""Words that ranks add up at a step: a refusal, four for the hyperparameters, four for each of two hashes."""
FLAGS = 1
"""Words that hold which of the layers received a gradient."""
SLACK = 4096
"""Bytes of bookkeeping that are in no category."""
SINGLE: list[dict[str, Any]] = [
    {},
    {"accumulation_mode": "unmanaged"},
    {"accumulation_mode": "multi_backward"},
]
SEVERAL: list[dict[str, Any]] = [{"gradient_accumulation_steps": 3}, *SINGLE[1:]]


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


@mock.patch.object(WatchedWork, "is_completed", mock.Mock(return_value=False))
def disturbed(group: dist.ProcessGroup, spec: dict[str, Any]) -> list[int]:
    """Return the bytes held after steps in which all goes wrong that can, every time alike."""
    gc.collect()
    gc.freeze()
    net = models.make("odd-together")
    rank = dist.get_rank(group)
    engine = build_engine(net, EngineSpec.model_validate(spec), group)
    held = []
    everything = ",".join(cases.DISTURBANCES)
    for _ in range(4):
        for micro in range(2):
            data = models.batch("odd-together", 1, micro, rank)
            cases.disturb_by(everything, engine, data, first=micro == 0, last=None)
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


@rows_of(lambda k: k in (0, 4, 5, 8, 10))
def test_steps_keep_nothing_and_copy_each_gradient_once(ranks: RankPool, k: int) -> None:
    """The categories account for all bytes, of a single backward and of several."""
    row = EVERY_ROW[k]
    sums = PART if row["zero_stage"] else WHOLE
    if row["zero_stage"] == 3 and row.get("offload_optimizer", "none") == "none":
        sums = 0  # where sums land outlives a step on the host alone
    for mode, backwards in ((SINGLE[k % 3], 1), (SEVERAL[k % 3], 3)):
        spec = row | mode | {"param_persistence_threshold": 0, "prefetch_bucket_size": 1}
        for result in ranks.run(2, f"{__name__}:steps", spec, backwards):
            kept, held, copies = result["kept"], result["held"], result["copies"]
            assert len(set(kept[1:])) == 1, f"{spec} leaks: {kept}"
            assert abs(kept[-1] + WHOLE - sum(held.values())) < SLACK
            gradients = held.get("gradients", 0) + held.get("host_gradients", 0)
            if backwards == 1:
                assert gradients == sums, "where the sums land, no more"
                assert set(copies) == {"copy_"}
                copied = WHOLE  # into buckets
                if row["zero_stage"] == 3:  # gradients are sent, and all layers but the first gathered
                    copied = (LAYERS - 1) * PART // LAYERS
                assert copies["copy_"] == copied + 8 * (FLAGS + TERMS)
            else:
                accumulator = WHOLE if row["zero_stage"] == 1 else 0  # stage 0 adds where the sums are kept
                assert gradients == sums + accumulator
                assert copies["add_"] == 2 * (WHOLE if row["zero_stage"] < 2 else PART)


@pytest.mark.check
@rows_of(lambda k: k in (1, 4, 5, 8, 11))
def test_a_failed_or_discarded_backward_leaves_no_bytes(ranks: RankPool, k: int) -> None:
    spec = EVERY_ROW[k] | SIZES | {"gradient_accumulation_steps": 2}
    for held in ranks.run(2, f"{__name__}:disturbed", spec):
        assert max(held[3:]) <= held[2], "the same every time, so nothing may be left"


def test_a_model_made_in_parts_is_never_whole(ranks: RankPool) -> None:
    layer = WHOLE // LAYERS
    for world_size in (2, 4):
        case = f"{__name__}:build_in_parts"
        for whole, parts in zip(*(ranks.run(world_size, case, w) for w in (True, False)), strict=True):
            assert whole[0]["created"] >= WHOLE
            most = WHOLE // world_size + 3 * layer
            assert parts[0]["created"] <= most, "its part, and the layer being made"
            state = 4 * WHOLE // world_size  # parameters, gradients and moments
            assert parts[0]["built"] <= state + 4 * layer
            assert all(torch.equal(v, parts[1][name]) for name, v in whole[1].items())
