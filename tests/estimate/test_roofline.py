"""The range of a step's time: its ends, and the message if a rate is missing."""

from dataclasses import replace
from typing import Any

import pytest

from tests.making import make_trial
from zbench.app.estimate_columns import estimate_table
from zbench.estimate.result import (
    Capacity,
    Estimate,
    NotSimulated,
    Product,
    Reserved,
    StepLaunches,
    StepWork,
)
from zbench.estimate.roofline import LEAST_ATTAINED, WIDTH, StepTime, attaining, moved, step_time
from zbench.estimate.row import EstimateRow
from zbench.spec.machine import MachineSpec
from zbench.spec.trial import TrialSpec

MACHINE: dict[str, Any] = {
    "flops": {"float32": 100.0},
    "memory_bandwidth": 10.0,
    "link_bandwidth": 10.0,
    "host_link": 10.0,
    "host_memory_bandwidth": 10.0,
}


def time_of(work: StepWork, sent: int = 0, **machine: Any) -> StepTime | str:
    trial = TrialSpec.model_validate({"workload": {}, "run": {"world_size": 2}, "engine": {"zero_stage": 1}})
    moved = {"reduce_scatter": {"calls": 4, "bytes": 2 * sent}} if sent else {}
    estimate = Estimate(0, 0, 0, {}, {}, "backward", [], moved, None, work)
    return step_time(estimate, trial, MachineSpec.model_validate(MACHINE | machine))


def cells(row: EstimateRow) -> dict[str, str]:
    """Return the cells of a row in the table of `zbench estimate`, by title."""
    table = estimate_table([row])
    return dict(zip(table.titles, table.texts()[0], strict=True))


def known(time: StepTime | str) -> StepTime:
    assert isinstance(time, StepTime), time
    return time


def test_a_product_takes_its_operations_or_its_bytes() -> None:
    assert known(time_of(StepWork(products=[Product(1000.0, 10, 2)]))).compute_s == 20.0
    assert known(time_of(StepWork(products=[Product(1000.0, 300, 2)]))).compute_s == 60.0


def test_operators_and_collectives_have_latencies_where_they_are_known() -> None:
    assert known(time_of(StepWork(operators=50), operator_latency="10ms")).compute_s == pytest.approx(0.5)
    assert known(time_of(StepWork(), sent=10, link_latency=1.0)).collectives_s == pytest.approx(5.0)
    assert known(time_of(StepWork(), sent=10)).collectives_s == pytest.approx(1.0)
    assert time_of(StepWork(operators=50)) == StepTime(0, 0, 0, 0, 0, 0)


@pytest.mark.parametrize(
    ("work", "sent"),
    [
        (StepWork(streamed_bytes=100), 30),
        (StepWork(streamed_bytes=10, copied_bytes=90, host_bytes=500), 60),
    ],
)
def test_the_ends_are_always_as_far_apart(work: StepWork, sent: int) -> None:
    time = known(time_of(work, sent))
    assert time.high_s / time.low_s == pytest.approx(WIDTH)
    parts = [time.compute_s + time.updates_s, time.collectives_s, time.copies_s]
    assert time.high_s >= sum(parts) * (1 - 1e-9)
    assert time.low_s <= max(*parts, sum(parts) / WIDTH) * (1 + 1e-9)


def test_a_card_reaches_a_share_by_dtype_and_launches_take_the_hosts_time() -> None:
    machine = {"flops": {"float32": 100.0, "bfloat16": 100.0}, "attained": {"float32": "50%", "bfloat16": 1}}
    work = StepWork(products=[Product(1000.0, 0, 1)])
    assert known(time_of(work, **machine)).compute_s == 20.0
    assert known(time_of(work, 10, **machine)).collectives_s == 2.0
    assert known(time_of(work, 10, **machine, link_attained=0.25)).collectives_s == 4.0
    trial = make_trial({"dtype": "bfloat16"})
    counts = StepLaunches(launches=150)
    estimate = Estimate(0, 0, 0, {}, {}, "backward", [], {}, None, work, counts)
    rates = MachineSpec.model_validate(MACHINE | machine | {"launch_latency": "10us"})
    assert known(step_time(estimate, trial, rates)).compute_s == 10.0, "launches run ahead of the card"
    small = replace(estimate, work=StepWork())
    assert known(step_time(small, trial, rates)).compute_s == pytest.approx(150 * 10e-6)


@pytest.mark.parametrize(("leaving", "seconds"), [(20, 5.0), (100, 10.0)])
def test_what_leaves_a_node_takes_the_time_of_its_network(leaving: int, seconds: float) -> None:
    run = {"world_size": 4, "nodes": 2}
    trial = TrialSpec.model_validate({"workload": {}, "run": run, "engine": {}})
    moved = {"all_reduce": {"calls": 1, "bytes": 100, "sent": 50}}
    counts = StepLaunches(inter_node_bytes=leaving)
    estimate = Estimate(0, 0, 0, {}, {}, "backward", [], moved, None, StepWork(), counts)
    machine = MachineSpec.model_validate(MACHINE)
    assert "--set machine.network_bandwidth=" in str(step_time(estimate, trial, machine))
    machine = machine.model_copy(update={"network_bandwidth": 10.0})
    assert known(step_time(estimate, trial, machine)).collectives_s == seconds


@pytest.mark.parametrize(
    ("work", "sent", "rate"),
    [
        (StepWork(), 10, "link_bandwidth"),
        (StepWork(copied_bytes=1), 0, "host_link"),
        (StepWork(host_bytes=1), 0, "host_memory_bandwidth"),
    ],
)
def test_a_rate_that_is_needed_and_missing_is_named(work: StepWork, sent: int, rate: str) -> None:
    told = time_of(work, sent, **{rate: None})
    assert isinstance(told, str)
    assert f"--set machine.{rate}=" in told
    assert isinstance(time_of(StepWork(operators=1), 0, **{rate: None}), StepTime)


def test_the_attained_share_puts_a_measured_step_in_the_middle() -> None:
    trial = TrialSpec.model_validate({"workload": {}, "run": {"world_size": 2}, "engine": {}})
    work = StepWork(operators=100, streamed_bytes=100)
    estimate = Estimate(0, 0, 0, {}, {}, "backward", [], {}, None, work)
    machine = MachineSpec.model_validate({**MACHINE, "operator_latency": "10ms"})
    spec = attaining(machine, estimate, trial, 1.0 + 10.0 / 0.4)
    assert spec.attained == pytest.approx(0.4, rel=1e-4)
    assert attaining(machine, estimate, trial, 0.1).attained == 1.0
    assert attaining(machine, estimate, trial, 1e9).attained == pytest.approx(LEAST_ATTAINED)


def test_a_row_says_whether_it_fits_and_what_is_left() -> None:
    held = {"parameters": 300, "moments": 200, "activations": 100}
    estimate = Estimate(1000, 0, 1200, held, {}, "backward", [], {}, None)
    trial = TrialSpec.model_validate({"workload": {}, "run": {"world_size": 2}, "engine": {}})
    for memory, verdict in (
        (1200, "fits with 0 B to spare"),
        (1199, "does not fit: 1 B too much while it is built; set build: sharded"),
        (999, "does not fit: 201 B too much"),
    ):
        row = EstimateRow(trial, estimate, Capacity(memory))
        assert (cells(row)["state"], cells(row)["other"]) == ("500 B", "400 B")
        assert (row.to_json()["fits"], row.to_json()["spare_bytes"]) == (memory > 1199, memory - 1200)
        assert row.verdict == verdict
        assert row.may_fit == row.fits, "nothing is reserved that could be less"
    offloaded = replace(estimate, peak_host_bytes=90, build_host_bytes=100)
    row = EstimateRow(trial, offloaded, Capacity(1200, 199))
    text = "does not fit: 1 B of a node's host memory too much while it is built; set build: sharded"
    assert row.verdict == text
    assert (row.fits, row.spare, row.host_bytes_of_a_node) == (False, {"device": 0, "host": -1}, 180)
    text = "fits with 0 B and 5 B of a node's host memory to spare"
    assert EstimateRow(trial, offloaded, Capacity(1200, 205)).verdict == text
    timed = EstimateRow(trial, estimate, time=StepTime(0.25, 0.5, 0.0, 0.0, 0.0, 0.0)).to_json()
    assert timed.keys() - EstimateRow(trial, estimate).to_json().keys() == {"time", "tokens_per_s"}


CARD = Estimate(900, 0, 0, {}, {}, "backward", [], {}, None, reserved=Reserved(1200, 1000, False))
LIKELY, MOST = (1000 + (mib << 20) for mib in (512, 1024))
RELEASES = " if cached memory is released in every step; expandable segments may avoid it"
IN_VAIN = "offload_param without offload_optimizer saves nothing"


@pytest.mark.parametrize(
    ("engine", "outcome", "room", "verdict"),
    [
        ({}, CARD, Capacity(MOST + 199), f"fits with 199 B to spare{RELEASES}"),
        ({}, CARD, Capacity(LIKELY), "may fit: 512 MiB too much"),
        ({}, CARD, Capacity(LIKELY - 1), "does not fit: 512 MiB too much"),
        ({}, CARD, Capacity(), None),
        ({"engine": "deepspeed"}, CARD, Capacity(), "by rules"),
        ({"zero_stage": 3, "offload_param": "cpu"}, CARD, Capacity(), IN_VAIN),
        ({}, NotSimulated("a shape"), Capacity(1), "not simulated"),
    ],
)  # fmt: skip
def test_a_verdict_says_what_is_to_be_known(
    engine: dict[str, Any], outcome: Any, room: Capacity, verdict: str | None
) -> None:
    row = EstimateRow(make_trial(engine), outcome, room)
    assert row.verdict == verdict
    shown = row.to_json()
    assert shown.get("not_simulated") == getattr(outcome, "reason", None)
    assert ("by_rules" in shown) == (verdict == "by rules")
    assert ("fits" in shown) == (room.device is not None and outcome is CARD)


def test_a_line_says_how_long_steps_and_tokens_take() -> None:
    estimate = Estimate(0, 0, 0, {}, {}, "backward", [], {}, None)
    trial = TrialSpec.model_validate({"workload": {}, "run": {"world_size": 2}, "engine": {}})
    time = StepTime(0.25, 0.5, 0.0, 0.0, 0.0, 0.0)
    training = 3 * 10**11, (2 * 86400.5, 40 * 86400.0)
    shown = cells(EstimateRow(trial, estimate, time=time, training=training))
    assert (shown["step"], shown["300B tokens"]) == ("250 to 500 ms", "2.00 to 40.0 days")
    assert (shown["trial"], shown["activations"]) == (trial.trial_id, "0 B")
    unknown = cells(EstimateRow(trial, estimate, time="a rate", training=(1000, "a rate")))
    assert (unknown["step"], unknown["1k tokens"]) == ("not known: a rate", "not known: a rate")


@pytest.mark.parametrize(
    ("kind", "sent", "received"),
    [("reduce_scatter", 75, 75), ("all_gather", 300, 300), ("broadcast", 100, 300)],
)
def test_a_rank_sends_and_receives_parts_by_the_collective(kind: str, sent: float, received: float) -> None:
    """Of four ranks, or of the four that share shards: these add a quarter over both groups of four."""
    traffic = {kind: {"calls": 1, "bytes": 100}}
    assert moved(traffic, make_trial({}, world_size=4)) == (sent, received)
    eight = make_trial({"zero_stage": 1, "shard_group_size": 4}, world_size=8)
    assert moved(traffic, eight) == ((100, 100) if kind == "reduce_scatter" else (sent, received))
