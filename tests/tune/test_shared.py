"""Several workers on one study: each point once, everybody's results, and a storage that fails."""

import sqlite3
from collections.abc import Collection
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy.exc

from zbench.job.progress import Watch
from zbench.launch.events import Notice, TrialFinished
from zbench.record.record import Record
from zbench.spec.trial import TrialSpec
from zbench.tune import session
from zbench.tune.objective import History
from zbench.tune.space import Point
from zbench.tune.storage import StudyStorageError, relational_storage

from .fakes import FakeRunner, searched
from .studies import POINTS, begun, ledger, result
from .test_session import budget


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path}/study.db"


def end_elsewhere(url: str, index: int) -> None:
    """Have another worker of the study begin and end a point."""
    other = ledger(url)
    assert other.finish(begun(other, index), result(index))


class Beside(FakeRunner):
    """Has another worker of the study end a trial during the first one here."""

    def __init__(self, url: str, index: int) -> None:
        super().__init__()
        self._url, self._index = url, index

    def run(self, trial: TrialSpec, *, repeat: int = 0, watch: Watch | None = None) -> Record:
        if not self.began:
            end_elsewhere(self._url, self._index)
        return super().run(trial, repeat=repeat, watch=watch)


def test_what_another_worker_ended_meanwhile_is_told_without_trial_and_time(url: str, tmp_path: Path) -> None:
    task = {"storage": url, "study": "s", "is_worker": True}
    search = searched(tmp_path, Beside(url, 7), task=task, search=budget(3))
    ended = search.told(TrialFinished)
    own = [(event.record.trial_id, event.record.repeat) for event in ended if event.trial is not None]
    theirs = [(event.record.trial_id, event.seconds) for event in ended if event.trial is None]
    assert own == search.runner.began
    assert theirs == [(result(7).trial_id, 0.0)]


def test_of_two_that_begin_the_last_trial_of_a_budget_the_later_gives_way(
    url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def late(history: History, taken: Collection[str]) -> Point:
        """Take its time to choose: another worker is quicker."""
        end_elsewhere(url, 1)
        return POINTS[3]

    monkeypatch.setattr(session, "make_proposer", lambda *_: late)
    search = searched(tmp_path, task={"storage": url, "study": "s", "is_worker": True}, search=budget(1))
    assert search.outcome.stopped == "the budget of 1 trials is spent"
    assert search.runner.began == []
    assert [trial.user_attrs["trial_id"] for trial in ledger(url).trials()] == [result(1).trial_id]


def test_unlike_machines_share_a_study_and_are_ranked_apart(url: str, tmp_path: Path) -> None:
    """One of another kind has run four points; the one who asks runs the others, and ranks these alone."""
    homes = [tmp_path / name for name in ("unlike", "alike")]
    there = searched(
        homes[0], machine="unlike", task={"storage": url, "is_worker": True}, search=budget(4, "grid")
    )
    here = searched(homes[1], machine="alike", task={"storage": url}, search={"method": "grid"})
    theirs, own = ({record.trial_id for record in search.records} for search in (there, here))
    assert (len(theirs), len(own)) == (4, 11)
    assert not theirs & own
    assert here.outcome.final.best is not None
    assert here.outcome.final.best.trial_id in own
    assert here.told(Notice)[-1].text.startswith("4 of the study's trials ran on other kinds of machines")


class Broken(FakeRunner):
    """Raises in its first trial."""

    def __init__(self, error: BaseException) -> None:
        super().__init__()
        self._error = error

    def run(self, trial: TrialSpec, **_: Any) -> Record:
        raise self._error


@pytest.mark.parametrize("error", [KeyboardInterrupt, RuntimeError])
def test_a_trial_that_is_interrupted_is_free_again(
    url: str, tmp_path: Path, error: type[BaseException]
) -> None:
    with pytest.raises(error):
        searched(tmp_path, Broken(error()), task={"storage": url, "study": "s"})
    assert ledger(url).trials() == []


def test_a_study_is_named_after_the_run_or_where_it_is_shared_after_the_sweep(
    url: str, tmp_path: Path
) -> None:
    tasks = [{}, {"storage": url}, {"storage": url, "study": "own"}]
    searches = [searched(tmp_path / str(n), task=task, search=budget(1)) for n, task in enumerate(tasks)]
    assert [search.outcome.study for search in searches] == [searches[0].path.name, "small", "own"]


def test_a_storage_that_fails_in_a_search_is_named(url: str, tmp_path: Path) -> None:
    cause = sqlite3.DatabaseError("database disk image is malformed")
    runner = Broken(sqlalchemy.exc.DatabaseError("SELECT 1", {}, cause))
    with pytest.raises(StudyStorageError, match=rf"cannot use storage {url}: .* is malformed"):
        searched(tmp_path, runner, task={"storage": url})


def test_a_storage_that_fails_when_the_study_is_opened_is_named(tmp_path: Path) -> None:
    file = tmp_path / "study.db"
    relational_storage(f"sqlite:///{file}")
    url = f"sqlite:///file:{file}?mode=ro&uri=true"
    with pytest.raises(StudyStorageError, match=r"cannot use storage sqlite:///.*readonly"):
        searched(tmp_path, task={"storage": url})
