"""What all repeats of one run have in common: one kind of machine, and one model and its data."""

from collections.abc import Iterable

from zbench.errors import UsageError
from zbench.record.inputs import changed
from zbench.record.record import Record


class Shared:
    """The machine and the files that the repeats of a run so far say they had."""

    def __init__(self, records: Iterable[Record]) -> None:
        self._machine: str | None = None
        self._inputs: dict[str, str] = {}
        for record in records:
            self.note(record)

    def note(self, record: Record) -> None:
        """Take a repeat as one of the run."""
        self._machine = self._machine or record.machine
        self._inputs |= record.inputs

    def require(self, record: Record) -> None:
        """Raise UsageError where a repeat had another machine or other files: one run is one ranking.

        On unlike machines it would be decided by where repeats happened to run, and a file that is edited
        meanwhile would make it one of two models.
        """
        if None not in (self._machine, record.machine) and record.machine != self._machine:
            raise UsageError(
                f"a repeat of {record.trial_id} ran on another kind of machine ({record.machine}) than those"
                f" before it ({self._machine}), so it is not kept: constrain the jobs to one kind, such as"
                " with --slurm constraint=NAME, or start a new run there and compare the two"
            )
        names = changed(self._inputs, record.inputs)
        if names:
            raise UsageError(
                f"{', '.join(names)} changed while the run was under way, so {record.trial_id} is not kept:"
                " one ranking is of one model; undo the change and use --resume, or start a new run"
            )
