"""Who runs which point. A claim is decided in one place and once, so no point runs twice at the same time.

A claim names the number of the study's trial that holds it. It is never given back: where that trial was lost
(its state is FAIL), the next one takes the claim over, and of several that try only one can.
"""

import contextlib
from collections.abc import Collection
from typing import Protocol

from sqlalchemy import Column, Engine, Integer, MetaData, String, Table, insert, select, update
from sqlalchemy.exc import IntegrityError, ProgrammingError


class Claims(Protocol):
    """The claims of one study: point key -> number of the trial that holds it."""

    def take(self, point: str, trial: int, lost: Collection[int]) -> bool:
        """Claim a point for a trial; True if it has it now. lost: trials whose claims may be taken."""


class MemoryClaims:
    """Claims within a single process: a journal belongs to a run directory, which one process writes."""

    def __init__(self) -> None:
        self._holders: dict[str, int] = {}

    def take(self, point: str, trial: int, lost: Collection[int]) -> bool:
        """Claim a point for a trial."""
        holder = self._holders.get(point)
        if holder is not None and holder != trial and holder not in lost:
            return False
        self._holders[point] = trial
        return True


class SqlClaims:
    """Claims in a table of the study's database; the primary key decides."""

    def __init__(self, engine: Engine, study: int) -> None:
        self._engine, self._study = engine, study
        metadata = MetaData()
        self._table = Table(
            "zbench_claims",
            metadata,
            Column("study", Integer, primary_key=True),
            Column("point", String(64), primary_key=True),
            Column("trial", Integer, nullable=False),
        )
        with contextlib.suppress(IntegrityError, ProgrammingError):  # another worker makes it at this moment
            metadata.create_all(engine, checkfirst=True)

    def take(self, point: str, trial: int, lost: Collection[int]) -> bool:
        """Claim a point for a trial."""
        table = self._table
        row = {"study": self._study, "point": point, "trial": trial}
        try:
            with self._engine.begin() as connection:
                connection.execute(insert(table).values(row))
                return True
        except IntegrityError:
            pass
        here = (table.c.study == self._study) & (table.c.point == point)
        with self._engine.begin() as connection:
            holder = connection.execute(select(table.c.trial).where(here)).scalar_one()
            if holder == trial:
                return True
            if holder not in lost:
                return False
            taken = connection.execute(
                update(table).where(here & (table.c.trial == holder)).values(trial=trial)
            )
            return taken.rowcount == 1
