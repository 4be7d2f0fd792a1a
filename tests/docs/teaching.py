"""What ranks do for `test_learn`: train with the examples and the engine, and record the calls of a step."""

import importlib
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import FrameType, ModuleType
from typing import Any
from unittest import mock

import torch
import torch.distributed as dist
from torch import Tensor, nn

from zbench.engine import Engine, build_engine
from zbench.spec.engine import EngineSpec

EXAMPLES = Path(__file__).parents[2] / "examples"
ENGINE = "zbench/engine/"


def example(name: str) -> ModuleType:
    """Import a file of `examples/`."""
    with mock.patch.object(sys, "path", [str(EXAMPLES), *sys.path]):
        return importlib.import_module(name)


def model() -> nn.Module:
    torch.manual_seed(3)
    return nn.Sequential(nn.Linear(13, 24), nn.Tanh(), nn.Linear(24, 24), nn.Tanh(), nn.Linear(24, 7))


def batch(step: int) -> Tensor:
    seed = 10 * step + dist.get_rank()
    return torch.randn(5, 13, generator=torch.Generator().manual_seed(seed))


def engine_of(group: dist.ProcessGroup, net: nn.Module, **keys: Any) -> Engine:
    return build_engine(net, EngineSpec(param_persistence_threshold=0, **keys), group)


def differing(net: nn.Module, engine: Engine) -> list[str]:
    """Return the names of the parameters whose bits are not the engine's."""
    values = engine.full_parameters()
    return [name for name, p in net.named_parameters() if not torch.equal(p, values[name])]


def hundred_lines(group: dist.ProcessGroup, stage: int) -> list[str]:
    """Train with the first example and the engine; return the parameters that differ after any step."""
    net = model()
    start = model().state_dict()
    differences = list[str]()
    if dist.get_rank() == 1:
        nn.init.zeros_(net[2].weight)  # rank 0's values count
    zero = example("zero_in_100_lines").Zero(net, stage)
    engine = engine_of(group, model(), zero_stage=stage)
    for step in range(4):
        net(batch(step)).square().mean().backward()
        zero.step()
        engine.backward(engine.model(batch(step)).square().mean())
        engine.step()
        for module in zero.modules:
            assert (module.full.untyped_storage().nbytes() == 0) == (stage == 3)
            module.gather()
        differences += differing(net, engine)
        assert not any(torch.equal(p, start[name]) for name, p in net.named_parameters()), "it trains"
        if stage == 3:
            for module in zero.modules:
                module.release()
    engine.close()
    return differences


def with_buckets(group: dist.ProcessGroup, bucket_size: int) -> list[str]:
    """Train with the second example and the engine; return the parameters that differ after any step."""
    net = model()
    start = model().state_dict()
    differences = list[str]()
    zero = example("zero_with_buckets").Zero2(net, bucket_size)
    keys = {"offload_optimizer": "cpu", "gradient_accumulation_steps": 2, "reduce_bucket_size": 512}
    engine = engine_of(group, model(), zero_stage=2, **keys)
    for step in range(4):
        for micro in (2 * step, 2 * step + 1):
            zero.backward(net(batch(micro)).square().mean())
            engine.backward(engine.model(batch(micro)).square().mean())
        zero.step()
        engine.step()
        differences += differing(net, engine)
        assert not any(torch.equal(p, start[name]) for name, p in net.named_parameters()), "it trains"
    engine.close()
    return differences


@dataclass
class Call:
    """One call of a function of the engine: `Class.function` in `file`, and the calls within."""

    function: str
    file: str
    inner: list["Call"]


def calls_of(run: Callable[[], object]) -> list[Call]:
    """Return the engine's calls while `run` runs in this thread."""
    root = Call("", "", [])
    open_calls = [root]

    def note(frame: FrameType, event: str, argument: object) -> None:
        file = frame.f_code.co_filename.partition(ENGINE)[2]
        if file and event == "call":
            open_calls[-1].inner.append(Call(frame.f_code.co_qualname, file, []))
            open_calls.append(open_calls[-1].inner[-1])
        elif file and event == "return" and len(open_calls) > 1:
            open_calls.pop()

    sys.setprofile(note)
    try:
        run()
    finally:
        sys.setprofile(None)
    return root.inner


def calls_of_a_step(group: dist.ProcessGroup, keys: dict[str, Any], backwards: int) -> list[Call]:
    """Return the engine's calls in a whole step, after one that shows the order of use."""
    engine = engine_of(group, model(), reduce_bucket_size=512, **keys)

    def step() -> None:
        for micro in range(backwards):
            engine.backward(engine.model(batch(micro)).square().mean())
        engine.step()

    step()
    calls = calls_of(step)
    engine.close()
    return calls
