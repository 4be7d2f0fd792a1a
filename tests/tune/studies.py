"""Studies that tests share: ledgers on a journal or a database, and points that are begun and finished."""

from dataclasses import replace
from typing import Any

import sqlalchemy
from optuna.storages import BaseStorage, JournalStorage
from optuna.storages.journal import JournalFileBackend
from optuna.trial import Trial, TrialState

from zbench.record.record import Record
from zbench.spec.sweep import SweepSpec
from zbench.spec.trial import TrialSpec
from zbench.tune.ledger import Ledger, open_study
from zbench.tune.space import Space
from zbench.tune.storage import Heartbeat, Outages, relational_storage

from .fakes import FakeMachine, small_sweep

SWEEP = small_sweep()
SPACE = Space(SWEEP)
POINTS = SPACE.points() or []
UNHURRIED = Heartbeat(1, 600)
"""Nobody is given up because the machine is busy: `silence` makes a worker a lost one."""


def storage_of(url: str) -> BaseStorage:
    """Open a journal, or a database."""
    kind, _, path = url.partition(":///")
    return (
        JournalStorage(JournalFileBackend(path)) if kind == "journal" else relational_storage(url, UNHURRIED)
    )


def ledger(
    url: str,
    *,
    sweep: SweepSpec = SWEEP,
    machine: str = "kind",
    outages: Outages | None = None,
    longest: float = 1000.0,
) -> Ledger:
    """Open the study `s` of this storage."""
    pace = None if url.startswith("journal") else 0.1
    study = open_study(storage_of(url), "s", sweep)
    return Ledger(study, Space(sweep), machine, outages or Outages(print), pace=pace, longest=longest)


def trial_of(index: int) -> TrialSpec:
    """Return the trial at a point of the small sweep."""
    trial = SPACE.trial(POINTS[index])
    assert isinstance(trial, TrialSpec)
    return trial


def begin(book: Ledger, index: int) -> Trial | None:
    """Take a point; None where it is taken."""
    return book.begin(POINTS[index], trial_of(index).trial_id)


def begun(book: Ledger, index: int) -> Trial:
    """Take a point that is free."""
    lease = begin(book, index)
    assert lease is not None
    return lease


def result(index: int, **changes: Any) -> Record:
    """Return what the trial at a point leaves, the same whenever it is asked for."""
    return replace(FakeMachine().record(trial_of(index)), **{"elapsed_s": 0.25, **changes})


def silence(url: str, pid: int | None = None) -> None:
    """Make the last signs of life of what runs look years old: of one process, or of all."""
    storage = relational_storage(url)
    running = [
        trial
        for study in storage.get_all_studies()
        for trial in storage.get_all_trials(study._study_id, deepcopy=False, states=(TrialState.RUNNING,))
        if pid in (None, int(trial.user_attrs["worker"].split("/")[1]))
    ]
    with storage.engine.begin() as connection:
        update = "UPDATE trial_heartbeats SET heartbeat = '2020-01-01 00:00:00' WHERE trial_id = :id"
        for trial in running:
            connection.execute(sqlalchemy.text(update), {"id": trial._trial_id})
    storage.engine.dispose()
