"""Several workers on one study: each point once, everybody's results, and a storage that fails."""

from collections.abc import Collection
from pathlib import Path

import pytest

from zbench.launch.events import Notice, TrialFinished
from zbench.launch.executor import RepeatTask
from zbench.tune import session
from zbench.tune.objective import History
from zbench.tune.space import Point
from zbench.tune.storage import StudyStorageError, relational_storage

from .fakes import POINTS, FakeMachine, begun, ledger, result, searched
from .test_session import budget


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path}/study.db"


def end_elsewhere(url: str, index: int) -> None:
    """Have another worker of the study begin and end a point."""
    other = ledger(url)
    assert other.finish(begun(other, index), result(index))


def beside(url: str, index: int) -> FakeMachine:
    """Return a machine where another worker of the study ends a trial during the first one here."""
    others = iter([index])

    def before_each(_: RepeatTask) -> None:
        for other in others:
            end_elsewhere(url, other)

    return FakeMachine(before_each=before_each)


def test_trials_of_another_worker_are_told_without_time(url: str, tmp_path: Path) -> None:
    task = {"storage": url, "study": "s", "is_worker": True}
    search = searched(tmp_path, beside(url, 7), task=task, search=budget(3))
    ended = search.told(TrialFinished)
    mine = [(event.record.trial_id, event.record.repeat) for event in ended if event.trial is not None]
    theirs = [(event.record.trial_id, event.seconds) for event in ended if event.trial is None]
    assert mine == search.began
    assert theirs == [(result(7).trial_id, 0.0)]


def test_the_last_trial_of_a_budget_runs_once(
    url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def late(history: History, taken: Collection[str]) -> Point:
        """Take its time to choose: another worker is quicker."""
        end_elsewhere(url, 1)
        return POINTS[3]

    monkeypatch.setattr(session, "make_proposer", lambda *_: late)
    search = searched(tmp_path, task={"storage": url, "study": "s", "is_worker": True}, search=budget(1))
    assert search.outcome.stopped == "the budget of 1 trials is spent"
    assert search.began == []
    assert [trial.user_attrs["trial_id"] for trial in ledger(url).trials()] == [result(1).trial_id]


@pytest.mark.check
def test_unlike_machines_share_a_study_and_are_ranked_apart(url: str, tmp_path: Path) -> None:
    """One of another kind has run four points; the one who asks runs the others, and ranks these alone."""
    homes = [tmp_path / name for name in ("unlike", "alike")]
    there = searched(
        homes[0], kind="unlike", task={"storage": url, "is_worker": True}, search=budget(4, "grid")
    )
    here = searched(homes[1], kind="alike", task={"storage": url}, search={"method": "grid"})
    theirs, mine = ({record.trial_id for record in search.records} for search in (there, here))
    assert (len(theirs), len(mine)) == (4, 11)
    assert not theirs & mine
    assert here.outcome.final.best is not None
    assert here.outcome.final.best.trial_id in mine
    assert here.told(Notice)[-1].text.startswith("4 of the study's trials ran on other kinds of machines")


def test_a_trial_that_is_interrupted_is_free_again(url: str, tmp_path: Path) -> None:
    def interrupt(_: RepeatTask) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        searched(tmp_path, FakeMachine(before_each=interrupt), task={"storage": url, "study": "s"})
    assert ledger(url).trials() == []


def test_a_study_is_named_after_its_run_or_sweep(url: str, tmp_path: Path) -> None:
    tasks = [{}, {"storage": url}, {"storage": url, "study": "own"}]
    searches = [searched(tmp_path / str(n), task=task, search=budget(1)) for n, task in enumerate(tasks)]
    assert [search.outcome.study for search in searches] == [searches[0].path.name, "small", "own"]


def test_a_storage_that_fails_to_open_is_named(tmp_path: Path) -> None:
    file = tmp_path / "study.db"
    relational_storage(f"sqlite:///{file}")
    url = f"sqlite:///file:{file}?mode=ro&uri=true"
    with pytest.raises(StudyStorageError, match=r"cannot use storage sqlite:///.*readonly"):
        searched(tmp_path, task={"storage": url})
