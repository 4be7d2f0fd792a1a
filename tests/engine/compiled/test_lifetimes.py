"""Memory of compiled reductions belongs to the step: asserted by bytes of torch's allocator.

`test_inductor` has what depends on inductor's code.
"""

import copy
import gc
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any
from unittest import mock

import pytest
import torch.distributed as dist
from torch import Tensor, nn

from tests.engine.compiled.cases import BASE, make
from tests.engine.holding import settled
from tests.engine.plain import assert_same
from zbench.engine import Engine, Instruments, build_engine
from zbench.engine.adam import AdamBackend, AdamTask
from zbench.engine.compiled.compile import CompiledGradients
from zbench.spec.engine import EngineSpec
from zbench.testing.ranks import RankPool


@dataclass
class Probe:
    """Adam that looks around before it updates."""

    inner: AdamBackend
    look: Callable[[], None] = lambda: None

    def update(self, tasks: Sequence[AdamTask], *, grad_scale: float = 1.0) -> None:
        settled()
        self.look()
        self.inner.update(tasks, grad_scale=grad_scale)

    def add_square_sums(self, grads: Sequence[Tensor], sums: Tensor) -> None:
        self.inner.add_square_sums(grads, sums)


def build(group: dist.ProcessGroup, model: nn.Module, **spec: Any) -> tuple[Engine, Probe]:
    """Return an engine with compiled reductions (unless `spec` says otherwise) and its Adam."""
    probes: list[Probe] = []

    def wrap(inner: AdamBackend) -> AdamBackend:
        probes.append(Probe(inner))
        return probes[-1]

    parsed = EngineSpec.model_validate({**BASE, "compile": "aot_eager", **spec})
    engine = build_engine(model, parsed, group, instruments=Instruments(wrap_adam=wrap))
    return engine, probes[-1]


def partition_of(engine: Engine) -> int:
    """Return the bytes of this rank's partition in float32: as many as each of its two moments has."""
    held = engine.memory_by_category()
    return (held.get("moments", 0) + held.get("host_moments", 0)) // 2


def update_meets_only_the_partition(
    group: dist.ProcessGroup, specs: Sequence[dict[str, Any]], name: str
) -> None:
    """Assert that all bytes alive at the update are those between steps and one float32 partition.

    One engine after the other compiles one model, whose code is used again where the dtype is the same.
    """
    model, batch = make(name)
    for spec in specs:
        gc.collect()
        engine, probe = build(group, model, **spec)
        partition = partition_of(engine)
        seen: list[tuple[int, dict[str, int]]] = []

        def look(engine: Engine = engine, seen: list[tuple[int, dict[str, int]]] = seen) -> None:
            seen.append((settled(), engine.memory_by_category()))

        probe.look = look
        resident = []
        for step in range(3):
            for micro in range(spec.get("gradient_accumulation_steps", 1)):
                engine.backward(model(*batch(dist.get_rank(group), step + 10 * micro)).float())
            engine.step()
            resident.append(settled())
        assert resident[1] == resident[2]
        assert [at_update for at_update, _ in seen[1:]] == [resident[1] + partition] * (len(seen) - 1)
        for _, held in seen:
            assert "buckets" not in held
            assert held.get("gradients", 0) + held.get("host_gradients", 0) == partition
        engine.close()


def faults_free_everything(group: dist.ProcessGroup) -> None:
    """Assert that a failing backward leaves no byte, and that the engine goes on as if it had not been."""
    runs = []
    model, batch = make("fragile")
    first = copy.deepcopy(model.state_dict())
    for faulty in (False, True):
        model.load_state_dict(first)
        engine, _ = build(group, model, reduce_bucket_size=600, gradient_accumulation_steps=2)
        rank = dist.get_rank(group)
        for step in range(3):
            if faulty and step == 1:
                gc.collect()
                idle = settled()
                engine.backward(model(*batch(rank, step)))
                with pytest.raises(ZeroDivisionError, match="a fault in backward"):
                    engine.backward(model(*batch(rank, step), faulty=True))
                assert settled() == idle
                engine.zero_grad()
            for micro in range(2):
                engine.backward(model(*batch(rank, step + 10 * micro)))
            engine.step()
        runs.append(engine.full_parameters())
        engine.close()
    assert_same(*runs)


def targets_come_with_gradients(group: dist.ProcessGroup, backwards: int) -> tuple[list[int], int]:
    """Return the bytes of targets when the last backward of a step begins, when its first gradient is ready,
    and when it has ended, and those of the partition.
    """
    model, batch = make("one_graph")
    engine, _ = build(group, model, gradient_accumulation_steps=backwards)
    seen: list[tuple[str, int]] = []

    def note(name: str) -> None:
        seen.append((name, engine.memory_by_category().get("gradients", 0)))

    def noted(name: str) -> Callable[..., None]:
        call = getattr(CompiledGradients, name)

        def noting(*args: Any) -> None:
            if name == "accept":
                note(name)
            call(*args)
            if name != "accept":
                note(name)

        return noting

    names = ("begin", "accept", "finish")
    with mock.patch.multiple(CompiledGradients, **{name: noted(name) for name in names}):
        for step in range(2):
            for micro in range(backwards):
                seen.clear()
                engine.backward(model(*batch(dist.get_rank(group), step + 10 * micro)))
            engine.step()
    partition = partition_of(engine)
    engine.close()
    assert [name for name, _ in seen[:2]] + [seen[-1][0]] == [*names]
    return [seen[0][1], seen[1][1], seen[-1][1]], partition


STEPS: list[dict[str, Any]] = [
    {},
    {"offload_optimizer": "cpu"},
    {"gradient_accumulation_steps": 2},
    {"dtype": "bfloat16", "communication_dtype": "float32", "gradient_accumulation_steps": 2},
]


@pytest.mark.parametrize("world_size", [pytest.param(1, marks=pytest.mark.check), 2])
def test_during_the_update_only_the_float32_partition_is_alive(ranks: RankPool, world_size: int) -> None:
    case = f"{__name__}:update_meets_only_the_partition"
    ranks.run(world_size, case, STEPS[world_size - 1 :: 2], "two_graphs_share_a_parameter")
    if world_size == 2:  # also of gradients that are sent from where they are
        ranks.run(2, case, [{"reduce_bucket_size": 10**6}], "wide")


def test_an_exception_in_backward_frees_everything(ranks: RankPool) -> None:
    ranks.run(2, f"{__name__}:faults_free_everything")


@pytest.mark.check
@pytest.mark.parametrize("backwards", [1, 2])
def test_targets_are_bound_when_the_first_gradient_is_ready(ranks: RankPool, backwards: int) -> None:
    for seen, partition in ranks.run(2, f"{__name__}:targets_come_with_gradients", backwards):
        begun, first, ended = seen
        assert begun == first == 0, "no target while the backward runs up to its first gradient"
        assert ended == partition > 0
