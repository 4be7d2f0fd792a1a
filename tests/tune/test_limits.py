"""What a search leaves out or ends early, and what it does not."""

from collections.abc import Collection
from pathlib import Path

import pytest

from zbench.estimate.result import Estimate
from zbench.spec.trial import TrialSpec
from zbench.tune.history import History
from zbench.tune.samplers import Proposal

from .fakes import FakeRunner, small_sweep
from .paced import Paced
from .test_study import search_of

STAGES = {"zero_stage": [0, 1, 2]}


class Endless:
    """Proposes another size whenever it is asked."""

    asked = 0

    def propose(self, history: History, taken: Collection[str]) -> Proposal | None:
        self.asked += 1
        return Proposal({"reduce_bucket_size": 10_000 + self.asked}, {})


def huge(trial: TrialSpec) -> Estimate:
    return Estimate(1 << 40, 0, 0, {}, {}, "backward", [], {}, None, 0.0)


def never(trial: TrialSpec) -> Estimate:
    raise AssertionError("simulated")


def outcomes(found) -> dict[int, str]:  # type: ignore[no-untyped-def]
    return {entry.point["zero_stage"]: entry.records[0].outcome for entry in found.entries()}


def test_a_search_ends_where_two_hundred_points_in_a_row_cannot_fit(tmp_path: Path) -> None:
    sweep = small_sweep(
        axes={"reduce_bucket_size": {"low": 1e4, "high": 1e8}},
        objective={"maximize": "tokens_per_s", "subject_to": {"peak_device_bytes": "<= 1Gi"}},
        search={"method": "random"},
    )
    source, runner = Endless(), FakeRunner()
    search, _, _ = search_of(tmp_path, sweep, runner, source, simulate=huge)
    assert search.run() == "every point was tried but 200 that cannot fit by the simulation"
    assert len(runner.began) == 1, "the first is measured: a search ends with a figure"
    assert source.asked == 201


@pytest.mark.parametrize(
    "bounds",
    [{}, {"median_step_s": "<= 1000"}, {"peak_device_bytes": ">= 1"}],
    ids=["none", "other", "least"],
)
def test_without_a_limit_of_memory_nothing_is_simulated(tmp_path: Path, bounds: dict[str, str]) -> None:
    objective = {"maximize": "tokens_per_s", "subject_to": bounds}
    sweep = small_sweep(axes=STAGES, objective=objective, search={"method": "random"})
    search, ledger, _ = search_of(tmp_path, sweep, FakeRunner(), simulate=never)
    assert search.run() == "every point that can run was tried"
    assert len(ledger.entries()) == 3


def test_the_limit_of_the_run_and_that_of_the_objective_both_hold(tmp_path: Path) -> None:
    sweep = small_sweep(
        axes={"micro_batch_size": [1, 2, 4, 8]},
        objective={"maximize": "tokens_per_s", "subject_to": {"peak_device_bytes": "<= 6Mi"}},
        search={"method": "random", "patience": 99},
    )

    def ask(trial: TrialSpec) -> Estimate:
        return Estimate(trial.workload.micro_batch_size << 20, 0, 0, {}, {}, "", [], {}, None, 0.0)

    search, _, _ = search_of(tmp_path, sweep, FakeRunner(), simulate=ask)
    search.run()
    assert list(search.predicted_oom.values()) in (
        [],
        ["needs 8 MiB by the simulation, the limit is 6 MiB"],
    ), "the first that is tried is measured anyway"


def test_what_is_fast_and_breaks_a_bound_ends_no_other_trial(tmp_path: Path) -> None:
    sweep = small_sweep(
        axes=STAGES,
        objective={"maximize": "tokens_per_s", "subject_to": {"peak_device_bytes": "<= 200"}},
        search={"method": "grid"},
    )
    runner = Paced({0: 1.0, 1: 2.5, 2: 6.0}, {0: 300})
    search, ledger, _ = search_of(tmp_path, sweep, runner, prune_factor=2.0)
    search.run()
    assert outcomes(ledger) == {0: "ok", 1: "ok", 2: "timeout"}


def test_where_memory_is_the_goal_no_trial_is_too_slow(tmp_path: Path) -> None:
    sweep = small_sweep(axes=STAGES, objective={"minimize": "peak_device_bytes"}, search={"method": "random"})
    search, ledger, _ = search_of(tmp_path, sweep, Paced({0: 1.0, 1: 9.0, 2: 99.0}), prune_factor=2.0)
    search.run()
    assert outcomes(ledger) == {0: "ok", 1: "ok", 2: "ok"}
