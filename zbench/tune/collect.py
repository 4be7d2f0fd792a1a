"""From the study to run directories, one for each kind of machine: unlike ones are never compared."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from zbench.record.record import Failure, Record
from zbench.record.store import RunDirectory
from zbench.spec.expand import expand
from zbench.spec.sweep import SweepSpec, sweep_document
from zbench.spec.trial import TrialSpec
from zbench.tune.ledger import Ledger, LedgerEntry
from zbench.tune.space import Point, Space

_MOST_INVALID = 1000


def gather(ledger: Ledger, directory: RunDirectory) -> list[Record]:
    """Append what the study holds of this kind of machine and the directory lacks; return what was new."""
    mine = [entry for entry in ledger.entries() if entry.host == ledger.worker.fingerprint]
    return _append(mine, directory)


def gather_elsewhere(ledger: Ledger, directory: RunDirectory, sweep: SweepSpec) -> list[Path]:
    """Write the records of other kinds of machines into run directories beside this one; return these."""
    kinds: dict[str, list[LedgerEntry]] = {}
    for entry in ledger.entries():
        if entry.host != ledger.worker.fingerprint and entry.records:
            kinds.setdefault(entry.host, []).append(entry)
    facts = ledger.host_facts()
    written = []
    for host, entries in sorted(kinds.items()):
        path = directory.path.with_name(f"{directory.path.name}@{host}")
        if path.is_dir():
            other = RunDirectory.open(path)
        else:
            other = RunDirectory.create(
                path.parent.parent,
                sweep.name,
                spec=sweep_document(sweep),
                environment=facts.get(host, {"fingerprint": host}),
                run_id=path.name,
            )
        with other:
            _append(entries, other)
        written.append(path)
    return written


def adopt(ledger: Ledger, directory: RunDirectory, space: Space) -> None:
    """Enter records of a run directory whose study was lost."""
    known = {record.trial_id for entry in ledger.entries() for record in entry.records}
    for record in directory.records():
        if record.repeat > 0 or record.outcome == "invalid" or record.trial_id in known:
            continue
        point = _point_of(record, space)
        if point is None:
            continue
        lease = ledger.begin(point, record.trial_id, {})
        if lease is not None:
            ledger.finish(lease, [record])


def record_invalid(space: Space, directory: RunDirectory) -> None:
    """Record the points of a listed space that cannot exist, with the reason, as plain sweeps do."""
    if not space.is_listable:
        return
    for point in expand(space.sweep).invalid[:_MOST_INVALID]:
        if not directory.holds(point.trial_id, 0):
            error = Failure("invalid", point.reason)
            directory.append(
                Record(directory.run_id, point.trial_id, 0, point.axes, point.config, "invalid", error)
            )


def _point_of(record: Record, space: Space) -> Point | None:
    """Return the point that left a record; None for a configuration that is not of this space."""
    for point in [space.point_of(record.config), *space.included]:
        trial = space.trial(point)
        if isinstance(trial, TrialSpec) and trial.trial_id == record.trial_id:
            return point
    return None


def _append(entries: Sequence[LedgerEntry], directory: RunDirectory) -> list[Record]:
    new = []
    for entry in entries:
        for record in entry.records:
            if not directory.holds(record.trial_id, record.repeat):
                new.append(replace(record, run_id=directory.run_id))
                directory.append(new[-1])
    return new
