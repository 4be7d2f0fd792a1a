"""What the benchmark of paired comparisons counts, and its slowed worker on a real trial."""

import random
import time
from dataclasses import replace
from pathlib import Path

import pytest
from analysis.synthetic import record

from tests.shared_processes import SharedProcesses
from zbench.analysis.measurement import OneByOne, PairedMeasurement, Plan
from zbench.analysis.paired import Side
from zbench.analysis.trials import Source
from zbench.bench import compare, slowed
from zbench.launch.executor import MODULES
from zbench.launch.trial import local_runner
from zbench.record.record import Record
from zbench.spec.trial import TrialSpec


def tallied(factor: float, plan: Plan) -> compare.Tally:
    """Return the tally of one family of two configurations whose head is so many times as slow."""
    noise = random.Random(1)

    def take(side: Side) -> list[Record]:
        slower = factor if side == "head" else 1.0
        return [record(slower * noise.gauss(0.1, 0.001), axes={"zero_stage": stage}) for stage in (1, 2)]

    found = PairedMeasurement(
        Source("base"), Source("head"), plan, compare.SETTINGS, OneByOne(take), lambda _: None
    ).run()
    tally = compare.Tally()
    tally.add(found)
    return tally


def test_sides_that_are_alike_raise_no_alarm() -> None:
    tally = tallied(1.0, Plan(12, 12))
    assert (tally.comparisons, tally.regressions, tally.first_alarms) == (2, 0, 0)
    assert tally.shift == pytest.approx(0, abs=0.01)
    assert tally.spread is not None
    assert 0.005 < tally.spread < 0.02


def test_a_slower_head_is_called() -> None:
    tally = tallied(1.06, Plan(12, 12))
    assert (tally.comparisons, tally.regressions, tally.first_alarms) == (2, 2, 2)
    table = compare.table(compare.Tally(), (0, 0), tally)
    assert "| head 5% slower | 2 | 2 | 100.0% | >= 90% |" in table


def test_a_redrawn_coin_turns_a_block_of_every_configuration() -> None:
    blocks = {"a": (0.1, -0.2, 0.3), "b": (1.0, 2.0, 3.0)}
    found = [compare.redrawn(blocks, random.Random(seed)) for seed in range(20)]
    for one in found:
        signs = [value / before for value, before in zip(one["b"], blocks["b"], strict=True)]
        assert set(signs) <= {1.0, -1.0}
        assert one["a"] == tuple(sign * value for sign, value in zip(signs, blocks["a"], strict=True))
    assert len({one["b"] for one in found}) > 2


def test_a_lengthened_step_takes_a_share_longer(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]

    def clock() -> float:
        now[0] += 0.001
        return now[0]

    def step(seconds: float) -> float:
        now[0] += seconds
        return seconds

    monkeypatch.setattr(time, "perf_counter", clock)
    assert slowed.lengthened(step, 0.5)(2.0) == 2.0
    assert now[0] == pytest.approx(3.0, abs=0.01)


def test_a_slowed_worker_trains_as_any_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, shared_processes: SharedProcesses
) -> None:
    shared_processes.lend_by(monkeypatch)
    trial = TrialSpec.model_validate(
        {
            "workload": {"model": "mlp", "options": {"hidden": 32}},
            "run": {"world_size": 1, "steps": 2, "warmup_steps": 1},
            "engine": {"zero_stage": 1},
            "verify": {"mode": "reference"},
        }
    )
    slowed_worker = replace(compare.SLOWED, modules=MODULES)  # this trial needs no torch._dynamo
    with local_runner(tmp_path, tmp_path, targets=slowed_worker, rerun_disturbed=False) as runner:
        found = runner.run(trial)
    assert found.outcome == "ok", found.error
    assert found.correctness.verdict == "identical"
