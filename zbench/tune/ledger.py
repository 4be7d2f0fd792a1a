"""The facts of one study, shared by every process that works on it: which points ran, where, with what
records.

The ledger is an Optuna study, so that Optuna's own tools can read it: parameters, values and constraints are
where they expect them. What zbench needs beyond that stands in user attributes. A trial of the study is one
point. Its state is RUNNING while a worker has it, and FAIL where that worker was lost: the point is free
again. It is PRUNED where the trial did not finish (out of memory, crash, deadline, too slow), and COMPLETE
otherwise.

A trial is created with its point, in one transaction that numbers it. Of several trials of one point that
are not FAIL the lowest number holds the point; so no point runs twice, and no lock is needed.
"""

import contextlib
import json
import os
import socket
import threading
import time
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import optuna
from optuna.exceptions import UpdateFinishedTrialError
from optuna.storages import BaseStorage
from optuna.trial import FrozenTrial, Trial, TrialState, create_trial

from zbench.errors import UsageError
from zbench.record import lines
from zbench.record.record import Record
from zbench.record.store import RunDirectory, find_runs, load_environment, load_records
from zbench.record.summary import summarize
from zbench.spec.load import sweep_from_mapping
from zbench.spec.sweep import SweepSpec, sweep_document
from zbench.spec.trial import TrialSpec
from zbench.tune.objective import Score, directions_of, score
from zbench.tune.space import Point, Space
from zbench.tune.storage import Outages

_SCHEMA_VERSION = 1
_NOT_IDENTITY = ("search", "machine")
_LIVE = (TrialState.RUNNING, TrialState.COMPLETE, TrialState.PRUNED)
_SIGNS_MISSED = 3


class Ledger:
    """One study, open in this process.

    kind: the fingerprint of this machine. pace: seconds between signs of life, where the storage keeps them.
    longest: seconds after which a trial that runs is taken for lost, whatever the signs of life say.
    """

    def __init__(
        self,
        study: optuna.Study,
        space: Space,
        kind: str,
        outages: Outages,
        *,
        pace: float | None,
        longest: float,
    ) -> None:
        self._study, self._space, self.kind, self.name = study, space, kind, study.study_name
        self._storage: Any = study._storage  # Optuna offers no public way to heartbeats
        self._outages, self._pace, self._longest = outages, pace, longest
        self._worker = f"{socket.gethostname()}/{os.getpid()}/{uuid.uuid4().hex}"
        self._first_seen: dict[int, float] = {}

    def trials(self) -> list[FrozenTrial]:
        """Return every point that runs or ran, in the order in which they were begun."""
        return self._outages.outlast(lambda: [t for t in self._in(*_LIVE) if "point" in t.user_attrs])

    def of_this_kind(self, trials: Sequence[FrozenTrial]) -> list[FrozenTrial]:
        """Return the trials that a machine of this kind runs or ran."""
        return [trial for trial in trials if trial.user_attrs["kind"] == self.kind]

    def begin(self, point: Point, trial_id: str) -> Trial | None:
        """Take a point for this process; None where another worker has it or has run it."""
        return self._outages.outlast(lambda: self._begin(point, trial_id))

    def _begin(self, point: Point, trial_id: str) -> Trial | None:
        template = trial_at(self._space, point, None, self._about(trial_id))
        key = self._storage.create_new_trial(self._study._study_id, template)
        trial = Trial(self._study, key)
        self._beat(trial)
        holders = [t for t in self._in(*_LIVE) if t.user_attrs.get("trial_id") == trial_id]
        if holders and holders[0]._trial_id == key:
            return trial
        self.drop(trial, "another trial has this point")
        for holder in holders[:1]:
            if holder.user_attrs["worker"] == self._worker and holder.state == TrialState.RUNNING:
                return Trial(self._study, holder._trial_id)  # begun before an outage
        return None

    def finish(self, trial: Trial, record: Record) -> bool:
        """Store what a trial left; False, and nothing stored, where this process was given up for lost."""
        return self._outages.outlast(lambda: self._finish(trial, record))

    def _finish(self, trial: Trial, record: Record) -> bool:
        result = self._score(record)
        try:
            trial.set_user_attr("record", lines.jsonable(record))
            for name, margin in result.margins.items():
                trial.set_constraint(name, margin)
            self._study.tell(trial, result.values, state=result.state)
        except (UpdateFinishedTrialError, ValueError):
            state = self._storage.get_trial(trial._trial_id).state
            if not state.is_finished():
                raise
            return bool(state != TrialState.FAIL)  # else it was stored when the connection broke
        return True

    def enter(self, point: Point, record: Record) -> None:
        """Add a trial that has ended, from its record."""
        about = self._about(record.trial_id) | {"record": lines.jsonable(record)}
        self._study.add_trial(trial_at(self._space, point, self._score(record), about))

    def drop(self, trial: Trial, reason: str) -> None:
        """Give a point back that was begun and will not be finished."""
        with contextlib.suppress(UpdateFinishedTrialError, ValueError):
            trial.set_user_attr("reason", reason)
            self._study.tell(trial, state=TrialState.FAIL)

    def reap(self) -> bool:
        """Free the points of workers that are gone; tell whether there were any.

        After an outage nobody is given up until all had time for a sign of life.
        """
        if self._outages.was_within(_SIGNS_MISSED * (self._pace or 0)):
            return False
        return self._outages.outlast(self._reap)

    def _reap(self) -> bool:
        before = len(self._in(TrialState.FAIL))
        optuna.storages.fail_stale_trials(self._study)
        now = time.monotonic()
        for trial in self._in(TrialState.RUNNING):
            if now - self._first_seen.setdefault(trial.number, now) > self._longest:
                with contextlib.suppress(UpdateFinishedTrialError, ValueError):
                    self._study.tell(trial.number, state=TrialState.FAIL)
        return len(self._in(TrialState.FAIL)) > before

    @contextlib.contextmanager
    def held(self, trial: Trial) -> Iterator[None]:
        """Tell the others, as long as the body runs, that this worker lives."""
        ended = threading.Event()
        thread = threading.Thread(target=self._beat_until, args=(ended, trial), daemon=True)
        thread.start()
        try:
            yield
        finally:
            ended.set()
            thread.join()

    def _beat_until(self, ended: threading.Event, trial: Trial) -> None:
        while not ended.wait(self._pace):
            try:
                self._beat(trial)
            except Exception:  # the next one makes up for it; Optuna's own thread would end here
                self._outages.note()

    def _beat(self, trial: Trial) -> None:
        if self._pace is not None:
            self._storage.record_heartbeat(trial._trial_id)

    def _score(self, record: Record) -> Score:
        (summary,) = summarize([record])
        return score(summary, self._space.sweep.objective)

    def _about(self, trial_id: str) -> dict[str, Any]:
        return {"trial_id": trial_id, "kind": self.kind, "worker": self._worker}

    def _in(self, *states: TrialState) -> list[FrozenTrial]:
        return self._study.get_trials(deepcopy=False, states=states)


def trial_at(space: Space, point: Point, result: Score | None, about: Mapping[str, Any]) -> FrozenTrial:
    """Return Optuna's trial of a point, RUNNING without a score. about: its user attributes."""
    params, distributions = space.encode(point) or ({}, {})
    return create_trial(
        state=result.state if result else TrialState.RUNNING,
        values=result.values if result else None,
        constraints=dict(result.margins) if result else None,
        params=params,
        distributions=distributions,
        user_attrs={"point": point, **about},
    )


def record_of(trial: FrozenTrial) -> Record:
    """Return what an ended trial left."""
    return lines.decode(trial.user_attrs["record"], "study")


def gather(trials: Iterable[FrozenTrial], directory: RunDirectory) -> list[Record]:
    """Append what these trials left and the directory lacks; return what was new."""
    new = []
    for trial in trials:
        if "record" in trial.user_attrs and not directory.holds(trial.user_attrs["trial_id"], 0):
            new.append(replace(record_of(trial), run_id=directory.run_id))
            directory.append(new[-1])
    return new


def adopt(ledger: Ledger, directory: RunDirectory, space: Space) -> None:
    """Enter the records of a run directory into a study that has none yet."""
    for record in directory.records():
        point = _point_of(record, space) if record.repeat == 0 else None
        if point is not None:
            ledger.enter(point, record)


def earlier_trials(run: Path, space: Space, kind: str) -> list[FrozenTrial]:
    """Return what runs beside `run`, of its sweep and on this kind of machine, left in this space.

    These trials teach a search where to look. They are no results of it: the machine may have changed since.
    """
    taught = []
    for path in find_runs(run.parent):
        with contextlib.suppress(UsageError):  # a run that is damaged, or of another version, teaches nothing
            if path.name != run.name and load_environment(path).get("fingerprint") == kind:
                for summary in summarize(load_records(path)):
                    point = _point_of(summary.records[0], space)
                    if point is not None:
                        taught.append(trial_at(space, point, score(summary, space.sweep.objective), {}))
    return [trial for trial in taught if trial.params]  # else the point is none of these axes


def _point_of(record: Record, space: Space) -> Point | None:
    """Return the point of a record's configuration; None where it is none of this space, or cannot exist."""
    points = [space.point_of(record.config), *space.included] if record.outcome != "invalid" else []
    for point in points:
        trial = space.trial(point)
        if isinstance(trial, TrialSpec) and trial.trial_id == record.trial_id:
            return point
    return None


def open_study(storage: BaseStorage, name: str, sweep: SweepSpec) -> optuna.Study:
    """Return the study of this name, made if there is none; UsageError where it is another sweep's."""
    study = optuna.create_study(
        storage=storage,
        study_name=name,
        directions=list(directions_of(sweep.objective)),
        load_if_exists=True,
        sampler=optuna.samplers.RandomSampler(),  # never asked
    )
    document = json.loads(json.dumps(sweep_document(sweep), default=str))
    if "zbench" not in study.user_attrs and not study.trials:
        study.set_user_attr("zbench", {"schema_version": _SCHEMA_VERSION, "sweep": document})
        return study
    other = _document_in(study)
    keys = {*document, *other}.difference(_NOT_IDENTITY)
    differing = sorted(key for key in keys if document.get(key) != other.get(key))
    if differing:
        raise UsageError(
            f"study {name!r} searches another sweep ({other.get('name')}): {', '.join(differing)} differ; "
            "choose another name with --study, or use that sweep's file"
        )
    return study


def load_sweep(storage: BaseStorage, name: str) -> SweepSpec:
    """Return the sweep of an existing study; UsageError with the names there are if it is unknown."""
    names = optuna.get_all_study_names(storage)
    if name not in names:
        choices = f"there are {', '.join(sorted(names))}" if names else "it holds none yet"
        raise UsageError(
            f"no study {name!r} in this storage ({choices}); begin one with `zbench tune FILE --storage URL`"
        )
    study = optuna.load_study(study_name=name, storage=storage, sampler=optuna.samplers.RandomSampler())
    return sweep_from_mapping(_document_in(study), environ={}, source=f"study {name}")


def _document_in(study: optuna.Study) -> dict[str, Any]:
    """Return the sweep that a study keeps; UsageError where zbench did not make it."""
    attribute = study.user_attrs.get("zbench")
    name = study.study_name
    if not isinstance(attribute, dict) or not isinstance(attribute.get("sweep"), dict):
        raise UsageError(f"study {name!r} was not made by zbench; choose another name with --study")
    if attribute.get("schema_version", _SCHEMA_VERSION) > _SCHEMA_VERSION:
        raise UsageError(f"study {name!r} was made by a newer zbench; update zbench on this host")
    document: dict[str, Any] = attribute["sweep"]
    return document
