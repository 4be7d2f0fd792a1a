"""The shared facts of a study: taken once, finished once, freed when a worker is lost."""

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import optuna
import pytest

from zbench.errors import UsageError
from zbench.record.record import Failure, Record
from zbench.spec.sweep import SweepSpec
from zbench.spec.trial import TrialSpec
from zbench.tune.claims import MemoryClaims, SqlClaims
from zbench.tune.identity import StudyIdentity, Worker, started_after_boot
from zbench.tune.ledger import Lease, Ledger, load_study, open_study
from zbench.tune.objective import Scorer
from zbench.tune.outage import Outages
from zbench.tune.space import Space
from zbench.tune.storage import journal_storage, relational_storage

from .fakes import FakeRunner, small_sweep

SWEEP = small_sweep()
SPACE = Space(SWEEP)
POINTS = SPACE.points() or []


@pytest.fixture(params=["journal", "sqlite"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return f"{request.param}:///{tmp_path}/study"


def ledger(
    url: str, *, sweep: SweepSpec = SWEEP, worker: Worker | None = None, outages: Outages | None = None
) -> Ledger:
    kind, _, path = url.partition(":///")
    storage = journal_storage(Path(path)) if kind == "journal" else relational_storage(url)
    scorer = Scorer(sweep.objective)
    study = open_study(storage, "s", StudyIdentity(sweep), scorer)
    engine = getattr(storage, "engine", None)
    claims = MemoryClaims() if engine is None else SqlClaims(engine, study._study_id)
    return Ledger(study, Space(sweep), scorer, claims, worker or Worker.here("kind"), outages)


def begin(book: Ledger, index: int) -> Lease | None:
    trial = SPACE.trial(POINTS[index])
    assert isinstance(trial, TrialSpec)
    return book.begin(POINTS[index], trial.trial_id, {"note": index})


def result(index: int, **changes: object) -> Record:
    trial = SPACE.trial(POINTS[index])
    assert isinstance(trial, TrialSpec)
    return replace(FakeRunner().run(trial), **changes)  # type: ignore[arg-type]


def test_what_is_finished_is_there_for_the_next_process(url: str) -> None:
    book = ledger(url)
    lease = begin(book, 0)
    assert lease is not None
    (running,) = book.entries()
    assert running.running
    assert book.finish(lease, [result(0)])
    (entry,) = ledger(url).entries()
    assert entry.point == POINTS[0]
    assert entry.host == "kind"
    assert entry.records == (result(0),)
    assert entry.observation.notes == {"note": 0}
    assert entry.observation.score == Scorer(SWEEP.objective).score([result(0)])


def test_what_ends_is_seen_by_the_process_that_ran_it(url: str) -> None:
    book = ledger(url)
    lease = begin(book, 0)
    assert lease is not None
    assert [entry.running for entry in book.entries()] == [True]
    assert book.finish(lease, [result(0)])
    assert [entry.running for entry in book.entries()] == [False]


def test_a_result_that_was_stored_when_the_connection_broke_counts_as_stored(url: str) -> None:
    book = ledger(url)
    lease = begin(book, 0)
    assert lease is not None
    assert [book.finish(lease, [result(0)]) for _ in range(2)] == [True, True]
    assert [entry.records for entry in book.entries()] == [(result(0),)]


def test_optunas_own_tools_find_parameters_values_and_constraints(url: str) -> None:
    book = ledger(url)
    lease = begin(book, 0)
    assert lease is not None
    assert book.finish(lease, [result(0)])
    kind, _, path = url.partition(":///")
    storage = journal_storage(Path(path)) if kind == "journal" else relational_storage(url)
    (trial,) = load_study(storage, "s")[0].trials
    score, encoded = Scorer(SWEEP.objective).score([result(0)]), SPACE.encode(POINTS[0])
    assert encoded is not None
    assert (trial.params, trial.distributions) == encoded
    assert tuple(trial.values) == score.values
    assert trial.constraints == score.margins


def test_a_point_is_taken_once(url: str) -> None:
    book = ledger(url)
    assert begin(book, 0) is not None
    assert begin(book, 0) is None
    assert len(book.entries()) == 1


def test_a_point_that_was_given_back_is_free(url: str) -> None:
    book = ledger(url)
    lease = begin(book, 0)
    assert lease is not None
    book.drop(lease, "interrupted")
    assert book.entries() == []
    assert begin(book, 0) is not None


def test_trials_that_did_not_finish_carry_their_margins(url: str) -> None:
    book = ledger(url)
    lease = begin(book, 0)
    assert lease is not None
    oom = result(0, outcome="oom", timing=None, memory=None, error=Failure("oom", "too large"))
    assert book.finish(lease, [oom])
    (entry,) = book.entries()
    assert entry.observation.score is not None
    assert entry.observation.score.values is None
    (trial,) = book._study.trials
    assert trial.state == optuna.trial.TrialState.PRUNED
    assert trial.constraints["finished"] == 1.0


def test_a_lost_workers_point_is_freed_and_its_late_result_refused(url: str) -> None:
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    lost = replace(Worker.here("kind"), pid=child.pid, started=started_after_boot(child.pid))
    theirs = ledger(url, worker=lost)
    lease = begin(theirs, 0)
    assert lease is not None
    mine = ledger(url)
    assert mine.reap() == 0
    assert begin(mine, 0) is None or url.startswith("journal"), "claims of a journal are its one process's"
    child.kill()
    child.wait()
    assert mine.reap() == 1
    assert [entry for entry in mine.entries() if entry.running and entry.number == lease.trial.number] == []
    again = begin(mine, 0)
    if url.startswith("sqlite"):
        assert again is not None
        assert mine.finish(again, [result(0)])
    assert not theirs.finish(lease, [result(0, run_id="late")])
    assert all(record.run_id != "late" for entry in mine.entries() for record in entry.records)


def test_after_an_outage_nobody_is_given_up_until_all_had_time_for_a_sign_of_life(tmp_path: Path) -> None:
    url, outages = f"journal:///{tmp_path}/study", Outages()
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    lost = replace(Worker.here("kind"), pid=gone.pid, started=0.0)
    assert begin(ledger(url, worker=lost), 0) is not None
    patient = ledger(url, worker=Worker.here("kind", heartbeat=1000), outages=outages)
    outages.note()
    assert patient.reap() == 0
    given_back = begin(patient, 1)
    assert given_back is not None
    patient.drop(given_back, "it failed before, and is not counted")
    assert ledger(url).reap() == 1


@pytest.mark.parametrize(("heartbeat", "patience"), [(10.0, 30.0), (None, 0.0)])
def test_a_sign_of_life_may_be_missed_three_times_after_an_outage(
    heartbeat: float | None, patience: float, tmp_path: Path
) -> None:
    class Asked(Outages):
        seconds: float | None = None

        def was_within(self, seconds: float) -> bool:
            self.seconds = seconds
            return True

    outages = Asked()
    book = ledger(
        f"journal:///{tmp_path}/study", worker=Worker.here("kind", heartbeat=heartbeat), outages=outages
    )
    assert book.reap() == 0
    assert outages.seconds == patience


def test_another_sweep_may_not_use_the_study(url: str) -> None:
    ledger(url)
    with pytest.raises(UsageError, match="searches another sweep"):
        ledger(url, sweep=small_sweep(axes={"zero_stage": [0, 1]}))


def test_a_worker_finds_the_sweep_in_the_study(url: str) -> None:
    ledger(url)
    kind, _, path = url.partition(":///")
    storage = journal_storage(Path(path)) if kind == "journal" else relational_storage(url)
    _, identity = load_study(storage, "s")
    assert identity.sweep == SWEEP
    with pytest.raises(UsageError, match=r"no study 'other' in this storage \(there are s\)"):
        load_study(storage, "other")


def test_each_kind_of_host_leaves_its_environment_once(url: str) -> None:
    book = ledger(url)
    book.join({"fingerprint": "kind", "machine": {"cores": 2}})
    book.join({"fingerprint": "kind", "machine": {"cores": 99}})
    assert book.host_facts() == {"kind": {"fingerprint": "kind", "machine": {"cores": 2}}}


def test_points_of_include_are_kept_though_no_axis_has_them(url: str) -> None:
    sweep = small_sweep(include=[{"zero_stage": 1, "overlap_comm": False}])
    space, book = Space(sweep), ledger(url, sweep=sweep)
    (point,) = space.included
    assert book.begin(point, "123", {}) is not None
    (entry,) = book.entries()
    assert entry.point == point
