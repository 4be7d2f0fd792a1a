"""Ranks agree or stop, by NCCL's rules: where one does not go on, every rank raises, and names the cause."""

import os
import signal
import time
from collections.abc import Callable
from contextlib import closing, suppress
from typing import Any
from unittest import mock

import pytest
import torch
import torch.distributed as dist

from tests.engine.nccl.group import FAULTS, NO_DEVICE, beside_a_host, built, strict
from tools.benchmarks.gpu.rank_in_trouble import Net
from zbench.engine import Engine
from zbench.engine.transport import agreement
from zbench.testing.ranks import RankPool

WIDTH = 32


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

    def act(self, place: str, fault: Callable[[], None] | None) -> None:
        """Do what is done at a place, with a fault in its midst, if any."""
        name = place.split()[-1]
        action = getattr(self, name, None) or getattr(self.engine, name)
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

    def load_state_dict(self) -> None:
        self.engine.load_state_dict(self.engine.state_dict())

    def gathered(self) -> None:
        with self.engine.gathered(self.model):
            self.model.layers[0].weight.sum()

    def write(self) -> None:
        with self.engine.gathered(self.model.layers[0], write=True), torch.no_grad():
            self.model.layers[0].weight.mul_(1.0)


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


SPECS: list[dict[str, Any]] = [
    {"zero_stage": 3, "param_persistence_threshold": 0, "prefetch_bucket_size": 1},
    {"zero_stage": 1},
    {"zero_stage": 2, "offload_optimizer": "cpu"},
]
SOON = 10.0
"""Seconds within which every rank must have raised."""
PATIENCES = (0.1, pytest.param(agreement.PATIENCE, marks=pytest.mark.soak))


def test_patience_two_looks_and_hearing_end_soon_enough() -> None:
    """A rank posts what it waits for, another one's look (five in a patience) sees it, and all tell all."""
    assert agreement.PATIENCE * (1 + 2 / 5) + agreement._SECONDS_TO_HEAR < SOON


def spec_at(place: str) -> dict[str, Any]:
    return SPECS[Script.PLACES.index(place) % len(SPECS)]


def check(heard: list[tuple[str, float]], kind: str, world: int) -> None:
    *others, last = heard
    if kind == "raises":
        assert "out of memory, say" in last[0], last
    for text, seconds in others if kind == "raises" else heard:
        assert text.startswith("RanksDisagreeError"), text
        assert seconds < SOON, (text, seconds)
        named = f"rank {world - 1}"
        assert named in text, text


@pytest.mark.parametrize("kind", ["raises", "differs"])
@pytest.mark.parametrize(
    "world", [2, pytest.param(4, marks=pytest.mark.soak), pytest.param(8, marks=pytest.mark.soak)]
)
@pytest.mark.parametrize("patience", PATIENCES)
def test_every_rank_raises_soon_and_names_the_cause(world: int, kind: str, patience: float) -> None:
    with closing(RankPool(world)) as ranks:
        for place in Script.PLACES:
            heard = ranks.run(world, f"{__name__}:trouble", kind, place, spec_at(place), patience)
            check(heard, kind, world)


@pytest.mark.parametrize(
    ("world", "places"),
    [
        (2, ("backward", "full_parameters")),
        *(pytest.param(world, Script.PLACES, marks=pytest.mark.soak) for world in (2, 4, 8)),
    ],
)
@pytest.mark.parametrize("patience", PATIENCES)
def test_the_end_of_a_rank_is_named_on_the_others(
    world: int, places: tuple[str, ...], patience: float
) -> None:
    """NCCL waits on for a rank that was killed."""
    for place in places:
        with closing(RankPool(world)) as ranks:
            ranks.begin(world, f"{__name__}:trouble", "ends", place, spec_at(place), patience)
            for rank in range(world - 1):
                returned, answer = ranks.answer(rank, 60.0)
                assert returned, answer
                text, seconds = answer
                assert text.startswith("RanksDisagreeError"), (place, text)
                assert f"rank {world - 1} has left" in text, (place, text)
                assert seconds < SOON, (place, seconds)
