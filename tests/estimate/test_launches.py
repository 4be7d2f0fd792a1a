"""What a step launches, sends and waits for is counted as it is."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode

import zbench.estimate.simulate as simulation
from zbench.engine.parameters.sharded import WEIGHTS
from zbench.engine.protocols import Tag
from zbench.engine.transport.works import Done
from zbench.estimate.counting import WorkCounter
from zbench.estimate.launches import StepCounter, WatchedCollectives, leaving_a_node
from zbench.estimate.result import StepLaunches
from zbench.estimate.simulate import SimulatedLedger, simulate
from zbench.measure.clock import PhaseClock
from zbench.measure.traffic import TrafficMeter
from zbench.spec.trial import TrialSpec

EIGHT = list(range(8))


@pytest.mark.parametrize(
    ("name", "ranks", "expected"),
    [
        ("all_to_all", EIGHT, 4 * 800 * 4 / 8),
        ("reduce_scatter", EIGHT, 800 * 7 / 8),
        ("all_reduce", EIGHT, 2 * 800 * 7 / 8),
        ("broadcast", EIGHT, 800),
        ("all_gather", [0, 1, 2, 3], 0),
        ("all_reduce", [1, 5], 4 * 2 * 800 / 2),
    ],
)
def test_bytes_that_leave_a_node_are_of_all_ranks(name: str, ranks: list[int], expected: float) -> None:
    """Two nodes of four ranks; groups across nodes exist once for each rank of a node."""
    assert leaving_a_node(name, 800, ranks, 4) == expected


class Gathers:
    """Collectives that are over at once."""

    rank, world_size, shard, shards = 0, 2, 0, 2

    def all_gather(self, flat: Tensor, tag: Tag) -> Done:
        return Done()


def noted(step: Callable[[StepCounter], None]) -> StepLaunches:
    """Return the counts of `step` on fake tensors."""
    ledger = SimulatedLedger()
    counter = ledger.counter = StepCounter(ledger, 8, is_card=True)
    ledger.work = WorkCounter(ledger.is_offloaded)
    with FakeTensorMode(), ledger.watching(), ledger.during("backward"):
        step(counter)
    return counter.take({})


def test_a_gather_without_computation_meanwhile_is_exposed() -> None:
    def step(counter: StepCounter) -> None:
        watched = WatchedCollectives(Gathers(), TrafficMeter(PhaseClock()), counter)  # type: ignore[arg-type]
        x = torch.ones(8)
        weights = Tag(WEIGHTS + "a")
        first = watched.all_gather(x, weights)
        x[:4].copy_(x[4:])
        first.wait()
        second = watched.all_gather(x, weights)
        x.mul_(2)
        second.wait()
        second.wait()
        watched.all_gather(x, Tag("something else")).wait()

    assert noted(step).gathers == {"calls": 2, "exposed": 1}


def test_the_host_waits_for_a_value_once() -> None:
    def step(counter: StepCounter) -> None:
        values = torch.ones(4) * 2
        there = counter.to_host(values)
        assert [(there + 1)[0].item(), float(there.sum())] == [0.0, 0.0]
        counter.to_host(there)
        torch.ones(3).sum().item()

    counts = noted(step)
    assert counts.host_waits == 2
    assert counts.launches == 4, "ones and its product, ones and their sum; not what the host computes"


def counts_of(device: str, nodes: int = 1, **engine: Any) -> StepLaunches:
    workload = {"options": {"layers": 2, "width": 32, "heads": 2}, "sequence_length": 16}
    run = {"world_size": 8, "nodes": nodes, "device": device}
    trial = TrialSpec.model_validate({"workload": workload, "run": run, "engine": engine})
    return simulate(trial, Path.cwd()).counts


def test_a_card_and_a_cpu_launch_the_collectives_asked_for() -> None:
    card, cpu = (counts_of(device, nodes=2, zero_stage=2) for device in ("cuda", "cpu"))
    assert set(card.collectives) == set(cpu.collectives) == {"reduce_scatter", "all_gather", "all_reduce"}
    in_order = counts_of("cuda", nodes=2, zero_stage=2, reduction="rank_order")
    assert set(in_order.collectives) == {"all_to_all", "all_gather", "all_reduce"}
    assert card.gradient_copies == cpu.gradient_copies > 0
    assert card.inter_node_bytes > 0
    assert card.norm_bytes == cpu.norm_bytes > 0
    assert (card.host_waits, cpu.host_waits) == (1, 0)


def test_offloaded_state_is_another_device_that_the_host_waits_for() -> None:
    near = counts_of("cuda", zero_stage=2, gradient_clipping=1.0)
    far = counts_of("cuda", zero_stage=2, gradient_clipping=1.0, offload_optimizer="cpu")
    assert (near.host_waits, far.host_waits) == (1, 4), "the flags; the copies of one bucket there and back"


@pytest.mark.check
def test_a_card_has_own_sizes_and_receive_buffers() -> None:
    trial = {
        "workload": {"options": {"layers": 2, "width": 384, "heads": 2}, "sequence_length": 16},
        "run": {"world_size": 8, "device": "cuda"},
        "engine": {"zero_stage": 2, "dtype": "bfloat16", "reduction": "rank_order"},
    }
    default, small = (
        simulate(TrialSpec.model_validate({**trial, "engine": {**trial["engine"], **keys}}), Path.cwd())
        for keys in ({}, {"reduce_bucket_size": 1_000_000})
    )
    assert default.counts.collectives["all_to_all"]["calls"] == 1, "25 million elements in a bucket"
    assert small.counts.collectives["all_to_all"]["calls"] > 1
    cpu = simulate(TrialSpec.model_validate({**trial, "run": {"world_size": 8}}), Path.cwd())
    assert default.ledger.peak[False] > cpu.ledger.peak[False]


@pytest.mark.check
@pytest.mark.parametrize(
    "engine",
    [
        {"zero_stage": 1},
        pytest.param({"zero_stage": 3}, marks=pytest.mark.check),
        pytest.param({"engine": "fsdp2", "zero_stage": 3}, marks=pytest.mark.check),
        pytest.param({"engine": "ddp"}, marks=pytest.mark.check),
    ],
)
def test_three_of_eight_micro_batches_count_for_all(
    engine: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    workload = {"options": {"layers": 2, "width": 32, "heads": 2}, "sequence_length": 16}
    document = {"workload": workload, "run": {"world_size": 8, "device": "cuda"}}
    trial = TrialSpec.model_validate({**document, "engine": {**engine, "gradient_accumulation_steps": 8}})
    three = simulate(trial, Path.cwd())
    monkeypatch.setattr(simulation, "MICRO_BATCHES", 8)
    eight = simulate(trial, Path.cwd())
    assert 0 <= eight.ledger.peak_of_both - three.ledger.peak_of_both <= 5 * 4, "losses"
    assert (three.work.products, three.flops) == (eight.work.products, eight.flops)
    assert (three.traffic, three.counts.collectives) == (eight.traffic, eight.counts.collectives)
    assert three.work.streamed_bytes == pytest.approx(eight.work.streamed_bytes, rel=0.01)
    assert three.counts.launches == pytest.approx(eight.counts.launches, rel=0.01)
    assert three.counts.gradient_copies == eight.counts.gradient_copies
