"""One search of several in a study: what the others run meanwhile is seen, and counts."""

from collections.abc import Collection
from pathlib import Path

from zbench.estimate.result import Estimate
from zbench.launch.events import Watch
from zbench.record.record import Record
from zbench.spec.sweep import SweepSpec
from zbench.spec.trial import TrialSpec
from zbench.tune.history import History
from zbench.tune.ledger import Lease, Ledger
from zbench.tune.samplers import Proposal
from zbench.tune.space import Point, Space

from .fakes import FakeRunner, small_sweep
from .test_study import ids, ledger_of, search_of

SIZES = {"micro_batch_size": [1, 2, 4, 8]}


class Other:
    """Another worker of the study."""

    def __init__(self, path: Path, sweep: SweepSpec, runner: FakeRunner | None = None) -> None:
        self.ledger: Ledger = ledger_of(path, sweep)
        self._space, self._runner = Space(sweep), runner or FakeRunner()

    def trial(self, point: Point) -> TrialSpec:
        found = self._space.trial(point)
        assert isinstance(found, TrialSpec)
        return found

    def begin(self, point: Point) -> Lease:
        lease = self.ledger.begin(point, self.trial(point).trial_id, {})
        assert lease is not None
        return lease

    def end(self, lease: Lease) -> None:
        assert self.ledger.finish(lease, [self._runner.run(self.trial(lease.point))])


class Interrupting(FakeRunner):
    """Has another worker end its trial during the first one here."""

    def __init__(self, other: Other, lease: Lease) -> None:
        super().__init__()
        self._other, self._lease = other, lease

    def run(self, trial: TrialSpec, *, repeat: int = 0, watch: Watch | None = None) -> Record:
        if not self.began:
            self._other.end(self._lease)
        return super().run(trial, repeat=repeat, watch=watch)


def test_of_two_that_begin_the_last_trial_of_a_budget_the_later_gives_way(tmp_path: Path) -> None:
    sweep = small_sweep(axes=SIZES, search={"method": "random", "trials": 1})
    other, runner = Other(tmp_path, sweep), FakeRunner()

    class Late:
        """Takes its time to choose: another worker was quicker."""

        def propose(self, history: History, taken: Collection[str]) -> Proposal | None:
            other.end(other.begin({"micro_batch_size": 2}))
            return Proposal({"micro_batch_size": 1}, {})

    search, ledger, ear = search_of(tmp_path, sweep, runner, Late())
    assert search.run() == "the budget of 1 trials is spent"
    assert runner.began == ear.records == []
    assert [entry.point for entry in ledger.entries()] == [{"micro_batch_size": 2}]


def test_what_another_worker_runs_out_of_memory_with_is_not_run_here_with_more(tmp_path: Path) -> None:
    sweep = small_sweep(axes=SIZES, search={"method": "grid"})
    other = Other(tmp_path, sweep, FakeRunner(outcomes=[({}, "oom")]))
    runner = Interrupting(other, other.begin({"micro_batch_size": 4}))
    search_of(tmp_path, sweep, runner)[0].run()
    assert ids(runner) == [other.trial({"micro_batch_size": size}).trial_id for size in (1, 2)]


def test_the_first_here_is_measured_though_too_large_while_another_worker_has_no_figure_yet(
    tmp_path: Path,
) -> None:
    objective = {"maximize": "tokens_per_s", "subject_to": {"peak_device_bytes": "<= 1Gi"}}
    sweep = small_sweep(axes=SIZES, objective=objective, search={"method": "random"})
    other = Other(tmp_path, sweep)
    runner = Interrupting(other, other.begin({"micro_batch_size": 4}))

    def huge(trial: TrialSpec) -> Estimate:
        return Estimate(1 << 40, 0, 0, {}, {}, "", [], {}, None, 0.0)

    search, ledger, _ = search_of(tmp_path, sweep, runner, simulate=huge)
    assert search.run() == "every point was tried but 2 that cannot fit by the simulation"
    assert len(runner.began) == 1
    assert len(ledger.entries()) == 2
