"""The facts of one study, shared by every process that works on it: which points ran, where, with what
records.

The ledger is an Optuna study, so that Optuna's own tools can read it: parameters, values and constraints are
where they expect them. What zbench needs beyond that stands in user attributes. A trial of the study is one
point; its state is RUNNING while a worker has it, FAIL where that worker was lost (the point is free again),
PRUNED where the trial did not finish (out of memory, crash, deadline, too slow) and COMPLETE otherwise.
"""

import contextlib
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import optuna
from optuna.distributions import BaseDistribution
from optuna.samplers import BaseSampler
from optuna.storages import BaseStorage
from optuna.trial import FrozenTrial, Trial, TrialState

from zbench.errors import UsageError
from zbench.record import lines
from zbench.record.record import Record
from zbench.tune.claims import Claims
from zbench.tune.history import Observation, Score
from zbench.tune.identity import StudyIdentity, Worker
from zbench.tune.objective import Scorer
from zbench.tune.outage import Outages
from zbench.tune.space import Point, Space

_LIVE = (TrialState.RUNNING, TrialState.COMPLETE, TrialState.PRUNED)
_SIGNS_MISSED = 3
_ENDED = (TrialState.COMPLETE, TrialState.PRUNED)


@dataclass(frozen=True, slots=True)
class Lease:
    """A point that this process may run, and the study's trial that holds it."""

    point: Point
    trial_id: str
    trial: Trial


@dataclass(frozen=True, slots=True)
class LedgerEntry:
    """What the study holds of one point. `host` is the fingerprint of the machine kind that ran it."""

    number: int
    point: Point
    host: str
    observation: Observation
    records: tuple[Record, ...]

    @property
    def running(self) -> bool:
        """Whether some worker has it now."""
        return self.observation.score is None


class Ledger:
    """One study, open in this process."""

    def __init__(
        self,
        study: optuna.Study,
        space: Space,
        scorer: Scorer,
        claims: Claims,
        worker: Worker,
        outages: Outages | None = None,
    ) -> None:
        self._outages = outages or Outages()
        self._study, self._space, self._scorer = study, space, scorer
        self._claims, self.worker = claims, worker
        self._ended: dict[int, LedgerEntry] = {}

    @property
    def name(self) -> str:
        """Return the study's name."""
        return self._study.study_name

    def entries(self) -> list[LedgerEntry]:
        """Return every point that runs or ran, in the order in which they were begun."""
        trials = self._outages.outlast(lambda: self._trials(*_LIVE))
        return [self._entry(t) for t in trials if "point" in t.user_attrs]

    def begin(self, point: Point, trial_id: str, notes: Mapping[str, Any]) -> Lease | None:
        """Take a point for this process; None where another worker has it or has run it.

        A trial that was begun when the connection broke has no worker: it is given up in time.
        """
        return self._outages.outlast(lambda: self._begin(point, trial_id, notes))

    def _begin(self, point: Point, trial_id: str, notes: Mapping[str, Any]) -> Lease | None:
        params, distributions = self._space.encode(point) or ({}, {})
        self._study.sampler = _Given(params)
        with _quietly():
            trial = self._study.ask(distributions)
        self._beat(trial)
        attributes = {"worker": self.worker.to_json(), "host": self.worker.fingerprint, "trial_id": trial_id}
        for key, value in {**attributes, "notes": dict(notes), "point": point}.items():
            trial.set_user_attr(key, value)
        lost = {t.number for t in self._trials(TrialState.FAIL)}
        if self._claims.take(trial_id, trial.number, lost):
            return Lease(point, trial_id, trial)
        self.drop(Lease(point, trial_id, trial), "another worker has this point")
        return None

    def finish(self, lease: Lease, records: Sequence[Record]) -> bool:
        """Store what a trial left; False, and nothing stored, where this process was given up for lost."""
        return self._outages.outlast(lambda: self._finish(lease, records))

    def _finish(self, lease: Lease, records: Sequence[Record]) -> bool:
        score = self._scorer.score(records)
        try:
            lease.trial.set_user_attr("records", [lines.jsonable(record) for record in records])
            for name, margin in score.margins.items():
                lease.trial.set_constraint(name, margin)
            if score.values is None:
                self._study.tell(lease.trial, state=TrialState.PRUNED)
            else:
                self._study.tell(lease.trial, list(score.values))
        except (optuna.exceptions.UpdateFinishedTrialError, ValueError):
            state = self._state(lease)
            if state == TrialState.FAIL or state in _ENDED:  # ended: stored when the connection broke
                return state in _ENDED
            raise
        return True

    def drop(self, lease: Lease, reason: str) -> None:
        """Give a point back that was begun and will not be finished."""
        with contextlib.suppress(optuna.exceptions.UpdateFinishedTrialError, ValueError):
            lease.trial.set_user_attr("reason", reason)
            self._study.tell(lease.trial, state=TrialState.FAIL)

    def reap(self) -> int:
        """Free the points of workers that are gone; return how many there were.

        After an outage nobody is given up until all had time for a sign of life.
        """
        if self._outages.was_within(_SIGNS_MISSED * (self.worker.heartbeat or 0)):
            return 0
        return self._outages.outlast(self._reap)

    def _reap(self) -> int:
        before = len(self._trials(TrialState.FAIL))
        with _quietly():
            optuna.storages.fail_stale_trials(self._study)
        for trial in self._trials(TrialState.RUNNING):
            if self.worker.knows_to_be_gone(trial.user_attrs.get("worker"), trial.datetime_start):
                with contextlib.suppress(optuna.exceptions.UpdateFinishedTrialError, ValueError):
                    self._study.tell(trial.number, state=TrialState.FAIL)
        return len(self._trials(TrialState.FAIL)) - before

    @contextlib.contextmanager
    def held(self, lease: Lease) -> Iterator[None]:
        """Tell the others, as long as the body runs, that this worker lives."""
        with self.worker.heartbeats(lambda: self._beat(lease.trial)):
            yield

    def host_facts(self) -> dict[str, Any]:
        """Return the environment of every kind of host that ever joined, by fingerprint."""
        prefix = "host:"
        attributes = self._study.user_attrs.items()
        return {key.removeprefix(prefix): value for key, value in attributes if key.startswith(prefix)}

    def join(self, environment: Mapping[str, Any]) -> None:
        """Leave this host's environment in the study, once a kind of host."""
        key = f"host:{self.worker.fingerprint}"
        if key not in self._study.user_attrs:
            self._study.set_user_attr(key, dict(environment))

    def _beat(self, trial: Trial) -> None:
        record = getattr(self._study._storage, "record_heartbeat", None)  # Optuna offers no public way to it
        if record is not None:
            try:
                record(trial._trial_id)
            except Exception:
                self._outages.note()
                raise

    def _state(self, lease: Lease) -> TrialState:
        return self._study.trials[lease.trial.number].state

    def _trials(self, *states: TrialState) -> list[FrozenTrial]:
        return self._study.get_trials(deepcopy=False, states=states)

    def _entry(self, trial: FrozenTrial) -> LedgerEntry:
        if trial.number in self._ended:
            return self._ended[trial.number]
        attributes = trial.user_attrs
        records = tuple(lines.decode(value, "study") for value in attributes.get("records", ()))
        score: Score | None = self._scorer.score(records) if trial.state in _ENDED else None
        observation = Observation(attributes["point"], score, attributes.get("notes", {}))
        entry = LedgerEntry(
            trial.number, attributes["point"], attributes.get("host", ""), observation, records
        )
        if score is not None:
            self._ended[trial.number] = entry
        return entry


def open_study(storage: BaseStorage, name: str, identity: StudyIdentity, scorer: Scorer) -> optuna.Study:
    """Return the study of this name, made if there is none; UsageError where it is another sweep's."""
    study = optuna.create_study(
        storage=storage,
        study_name=name,
        directions=list(scorer.directions),
        load_if_exists=True,
        sampler=_Given({}),
    )
    known = study.user_attrs.get("zbench")
    if known is None and not study.trials:
        study.set_user_attr("zbench", identity.to_json())
    else:
        identity.require_same(known, name)
    return study


def load_study(storage: BaseStorage, name: str) -> tuple[optuna.Study, StudyIdentity]:
    """Return an existing study and what it searches; UsageError with the names there are if it is unknown."""
    names = optuna.get_all_study_names(storage)
    if name not in names:
        known = f"there are {', '.join(sorted(names))}" if names else "it holds none yet"
        raise UsageError(
            f"no study {name!r} in this storage ({known}); begin one with `zbench tune FILE --storage URL`"
        )
    study = optuna.load_study(study_name=name, storage=storage, sampler=_Given({}))
    return study, StudyIdentity.of_study(study.user_attrs.get("zbench"), name)


class _Given(BaseSampler):
    """Returns parameters that were chosen elsewhere: the shared study records, it does not sample."""

    def __init__(self, params: Mapping[str, Any]) -> None:
        self._params = params

    def infer_relative_search_space(
        self, study: optuna.Study, trial: FrozenTrial
    ) -> dict[str, BaseDistribution]:
        return {}

    def sample_relative(
        self, study: optuna.Study, trial: FrozenTrial, search_space: dict[str, BaseDistribution]
    ) -> dict[str, Any]:
        return {}

    def sample_independent(
        self, study: optuna.Study, trial: FrozenTrial, param_name: str, param_distribution: BaseDistribution
    ) -> Any:
        return self._params[param_name]


@contextlib.contextmanager
def _quietly() -> Iterator[None]:
    """Silence Optuna where it advises against what is meant: heartbeats outside of `Study.optimize`."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield
