"""What ranks run over a strict group: training, and a rank that does not do what the others do."""

import os
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any
from unittest import mock

import torch
import torch.distributed as dist
from torch import Tensor, nn

from tests.engine import models
from tests.engine.cases import train
from tests.engine.far_memory.copies import Copies
from tests.engine.far_memory.memory import FarMemory
from tests.engine.nccl.group import FAULTS, NO_DEVICE, StrictGroup, strict
from tests.engine.plain import Trajectory
from tools.benchmarks.gpu.rank_in_trouble import Net
from zbench.engine import Engine, Instruments, build_engine
from zbench.engine.memory.kinds import DeviceMemory, Memories
from zbench.engine.transport import agreement
from zbench.spec.engine import EngineSpec
from zbench.testing import collectives as suite

WIDTH = 32


@dataclass(frozen=True)
class Case:
    """A run of training; fields as of `far_memory.cases.Case`."""

    spec: dict[str, Any]
    seed: int = 0
    model: str = "mlp"
    steps: int = 3
    backwards: int = 1
    change: str = "nothing"
    disturb: str = ""


def run(group: dist.ProcessGroup, cases: Sequence[Case]) -> list[tuple[Trajectory, list[str]]]:
    """Return each case's trajectory, and the rules that it broke."""
    results = []
    with strict(group) as mine:
        for case in cases:
            with beside_a_host(case.seed * 2 + mine.rank()) as (instruments, faults):
                engine = built(models.make(case.model), case.spec, mine, instruments)
                how = {key: getattr(case, key) for key in ("steps", "backwards", "change", "disturb")}
                trajectory = train(engine, case.model, mine.rank(), **how)
            results.append((trajectory, [*faults, *FAULTS]))
            FAULTS.clear()
    return results


@contextmanager
def beside_a_host(seed: int) -> Iterator[tuple[Instruments, list[str]]]:
    """Yield instruments of an engine whose host memory is reached by late copies, and their faults."""
    copies = Copies(seed)
    faults = list[str]()

    def memories(device: torch.device) -> Memories:
        return Memories(DeviceMemory(device), FarMemory(copies))

    try:
        yield Instruments(memories=memories), faults
    finally:
        faults += copies.close()


def built(
    model: nn.Module, spec: dict[str, Any], group: dist.ProcessGroup, instruments: Instruments
) -> Engine:
    """Return an engine; from now on no communicator may be made."""
    StrictGroup.sealed = False
    engine = build_engine(
        model, EngineSpec.model_validate({"reduction": "rank_order"} | spec), group, instruments=instruments
    )
    StrictGroup.sealed = True
    return engine


class Script:
    """What all ranks do, one action after another, twice."""

    PLACES = (
        "evaluate", "forward", "backward", "second forward", "second backward", "step", "full_parameters",
        "state_dict", "load_state_dict", "gathered", "write", "last step",
    )  # fmt: skip

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.model = engine.model
        self.x = torch.ones(2, WIDTH)
        self.state: dict[str, Tensor] = {}

    def act(self, place: str, fault: Callable[[], None] | None) -> None:
        """Do what is done at a place, with a fault in its midst, if any."""
        action = getattr(self, place.split()[-1])
        if fault is None:
            action()
        elif place.endswith("forward") or place == "evaluate":
            self.model.fault = fault
            action()
        elif place.endswith("backward"):
            self.loss.register_hook(lambda gradient: fault())
            action()
        else:
            with self.engine._reporting():
                fault()

    def evaluate(self) -> None:
        with torch.no_grad():
            self.model(self.x)

    def forward(self) -> None:
        self.loss = self.model(self.x)

    def backward(self) -> None:
        self.engine.backward(self.loss)

    def step(self) -> None:
        if not self.engine.holds_gradients:
            for _ in range(2):
                self.engine.backward(self.model(self.x))
        self.engine.step()

    def full_parameters(self) -> None:
        self.engine.full_parameters()

    def state_dict(self) -> None:
        self.state = self.engine.state_dict()

    def load_state_dict(self) -> None:
        self.engine.load_state_dict(self.state or self.engine.state_dict())

    def gathered(self) -> None:
        with self.engine.gathered(self.model):
            self.model.layers[0].weight.sum()

    def write(self) -> None:
        with self.engine.gathered(self.model.layers[0], write=True), torch.no_grad():
            self.model.layers[0].weight.mul_(1.0)


def conforming(group: dist.ProcessGroup, kind: str, operation: str) -> list[Any]:
    """Return where one operation of the conformance suite does not what the protocol says, and the rules that
    it broke.
    """
    with strict(group) as mine:
        wrong = suite.run(
            mine, f"tests.engine.transport.kinds:{kind}", operation, (torch.float32, torch.bfloat16)
        )
        return [*wrong, *FAULTS]


def trouble(
    group: dist.ProcessGroup, kind: str, place: str, spec: dict[str, Any], patience: float
) -> tuple[str, float]:
    """The last rank raises, ends or makes other calls at a place; return what this rank heard, and after how
    many seconds: of a rank in trouble from then, of another from when it began to do the same.
    """
    alone = dist.get_rank(group) == dist.get_world_size(group) - 1
    with (
        mock.patch.object(agreement, "PATIENCE", patience),
        strict(group) as mine,
        beside_a_host(mine.rank()) as (instruments, _),
    ):
        engine = built(Net(WIDTH), {"gradient_accumulation_steps": 2, **spec}, mine, instruments)
        script = Script(engine)
        began = time.monotonic()
        script.step()
        try:
            for each in Script.PLACES:
                if each == place:
                    began = time.monotonic()
                    if alone and kind == "differs":
                        engine.state_dict()
                        engine.state_dict()
                        continue
                script.act(each, FAULT[kind] if alone and each == place else None)
        except Exception as error:
            heard = f"{type(error).__name__}: {error}"
        else:
            heard = "nothing"
        seconds = time.monotonic() - began
        assert NO_DEVICE not in FAULTS
        with suppress(Exception):
            engine.close()
        return heard, seconds


def _raise() -> None:
    raise ValueError("out of memory, say")


def _end() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


FAULT: dict[str, Callable[[], None]] = {"raises": _raise, "ends": _end, "differs": _raise}


def broken_rules(group: dist.ProcessGroup) -> list[str]:
    """Break rules, and return what shows of each."""
    with strict(group) as mine:
        StrictGroup.sealed = True
        part = torch.ones(4)
        out = torch.zeros(4 * mine.size())
        work: Any = dist.all_gather_into_tensor(out, part, group=mine, async_op=True)
        work.done.wait()
        shown = ["an unwaited result is NaN"] * bool(out.isnan().all())
        work.wait()
        assert bool((out == 1).all())
        dist.all_reduce(torch.from_numpy(torch.ones(4).numpy()), group=mine)
        try:
            dist.all_gather_object([None] * mine.size(), 1, group=mine)
        except TypeError as error:
            shown.append(str(error))
        return shown + FAULTS


def other_sizes(group: dist.ProcessGroup) -> None:
    """Reduce other sizes on rank 0, which hangs until the group is aborted."""
    with strict(group) as mine:
        work: Any = dist.all_reduce(torch.ones(4 + mine.rank()), group=mine, async_op=True)
        assert not work.done.wait(0.5)
        mine._get_backend(torch.device("cpu")).abort()  # type: ignore[attr-defined]
        assert work.done.wait(5.0)
        raise AssertionError(f"other sizes: {FAULTS}")
