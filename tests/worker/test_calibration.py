"""The rates that `zbench doctor --calibrate` tells are work over its seconds."""

import json
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from tests.worker.conftest import trial
from zbench.job.jobs import RankJob
from zbench.measure.counts import count_operators
from zbench.worker import calibration


@pytest.fixture
def _half_a_second(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every work that is timed is done once, in half a second."""
    monkeypatch.setattr(calibration, "seconds", lambda work, *_, **__: [0.5, work()][0])
    monkeypatch.setattr(calibration, "mean", lambda value: value)


@pytest.mark.usefixtures("_half_a_second")
def test_rates_are_those_of_the_work_that_is_timed() -> None:
    rates = []
    cpu = torch.device("cpu")
    counts = count_operators(lambda: rates.append(calibration.rates(cpu)), cpu)
    flops = 2 * 256 * 768 * 3072
    stream = 3 * 4 * (1 << 24)
    assert counts["flops"] == 2 * flops
    (entry,) = rates
    assert entry.pop("flops") == {"float32": flops / 0.5, "bfloat16": flops / 0.5}
    assert entry == dict.fromkeys(("memory_bandwidth", "host_link", "host_memory_bandwidth"), stream / 0.5)


@pytest.mark.parametrize(("ranks", "links"), [(1, (None, None)), (4, (3.0 * (1 << 22) / 4, 1.0))])
def test_a_links_bandwidth_is_what_a_rank_sends_over_the_time_beyond_the_latency(
    ranks: int, links: tuple[float | None, float | None], monkeypatch: pytest.MonkeyPatch
) -> None:
    world = SimpleNamespace(world_size=ranks, close=lambda: None)
    monkeypatch.setattr(calibration, "choose_collectives", lambda *_: world)
    monkeypatch.setattr(calibration, "exchange", lambda _, numel, __: 1.0 if numel == 256 * ranks else 5.0)
    monkeypatch.setattr(calibration, "mean", lambda value: value)
    assert tuple(calibration.links(torch.device("cpu")).values()) == links


@pytest.mark.usefixtures("_half_a_second")
@pytest.mark.parametrize(
    ("link", "expected"), [(None, 0.5 / 100), (0.01, (0.5 - 2 * 0.01) / 100), (1e3, 1e-9 / 100)]
)
def test_an_operator_takes_its_share_of_a_step_without_its_collectives(
    link: float | None, expected: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(calibration, "rates", lambda device: {})
    monkeypatch.setattr(calibration, "links", lambda device: {"link_latency": link})
    traffic = SimpleNamespace(count=lambda inner: inner, take=lambda: {"all": SimpleNamespace(calls=2)})
    monkeypatch.setattr(calibration, "TrafficMeter", lambda _: traffic)
    monkeypatch.setattr(calibration, "count_operators", lambda step, _: [step(), {"operators": 100}][1])
    values = trial({"zero_stage": 1}, run={"world_size": 1}).model_dump(mode="json")
    result, meeting = tmp_path / "result", f"file://{tmp_path}/meeting"
    calibration.measure(RankJob(values, 0, 1, meeting, str(tmp_path), str(tmp_path), str(result)))
    assert json.loads(result.read_text())["operator_latency"] == pytest.approx(expected)
