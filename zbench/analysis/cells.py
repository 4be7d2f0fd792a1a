"""The cells of a sweep's table of log times: a repeat of a row, within its heat or round. Pure.

All values are logarithms, less is better. A repeat has the steps of each turn of its process.
"""

import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from zbench.analysis.variances import Floats
from zbench.record.record import Record
from zbench.record.summary import ConfigSummary
from zbench.spec.engine import ALONE_KEYS
from zbench.spec.metrics import STEP_TIMES, TIMED, Goal, metric_named

Indices = NDArray[np.intp]
Turns = tuple[Floats, ...]
"""The logarithms of the steps [..., steps] of each turn, of one cell or of several with as many steps."""

ALONE = "alone: "
"""What the names of rows begin with that have no steps, only turns."""

_NOTHING = 1e-99  # stands for a figure of 0 on the log scale


@dataclass(frozen=True, slots=True)
class Cell:
    """A repeat of a row, the round of its sweep, and its block, within which rows are compared: a heat or a
    round.
    """

    row: str
    round: str
    block: str
    turns: Turns


def cells_of(summaries: Sequence[ConfigSummary], goal: Goal) -> list[Cell]:
    """Return the cells of a goal's metric: of each configuration, and of each `alone` beside them.

    Without turns, and for a metric that is none of the mean time, a repeat has one value.
    """
    metric = metric_named(goal.metric)
    sign = -1 if goal.direction == "maximize" else 1
    has_steps = is_time(goal)
    cells: dict[tuple[str, str, str], Cell] = {}
    for summary in summaries:
        beside = ""
        for record in summary.ok:
            value = metric.read(record)
            if not (isinstance(value, int | float) and value >= 0):
                continue
            heat = record.heat
            row = summary.trial_id
            of = f"round {record.run_id} {record.repeat}"
            cost = sign * math.log(value or _NOTHING)
            has_turns = has_steps and goal.metric not in STEP_TIMES[1:]
            turns = _turns(record, cost) if has_turns else (np.array([cost]),)
            block = f"heat {heat.name}" if heat is not None else of
            cells[row, of, block] = Cell(row, of, block, turns)
            if has_steps and heat is not None and heat.alone:
                beside = beside or alone_row(record)  # all records of a configuration have the same
                seconds = tuple(np.log([one]) for one in heat.alone)
                cells[beside, of, block] = Cell(beside, of, block, seconds)
    return list(cells.values())


def is_time(goal: Goal) -> bool:
    """Return whether a goal's metric is the time of steps, or follows from it."""
    metric = metric_named(goal.metric)
    return metric.unit in TIMED and metric.compute is None


def cpu_cells_of(summaries: Sequence[ConfigSummary]) -> list[Cell] | None:
    """Return the cells of the CPU time of each configuration's steps; None if a repeat has no such figure.

    The names of rows, rounds and blocks are those of `cells_of`.
    """
    cells = []
    for summary in summaries:
        for record in summary.ok:
            if record.timing is None or not record.timing.cpu_seconds or min(record.timing.cpu_seconds) <= 0:
                return None
            of = f"round {record.run_id} {record.repeat}"
            block = f"heat {record.heat.name}" if record.heat is not None else of
            turns = len(record.heat.turn_seconds) if record.heat is not None else 0
            cells.append(Cell(summary.trial_id, of, block, _split(record.timing.cpu_seconds, turns)))
    return cells


def _split(steps: Sequence[float], turns: int) -> Turns:
    """Return the logarithms of the steps of each turn; the logarithm of their mean without turns."""
    if not 0 < turns <= len(steps):
        return (np.log([math.fsum(steps) / len(steps)]),)
    ends = [len(steps) * turn // turns for turn in range(1, turns)]
    return tuple(np.split(np.log(steps), ends))


def alone_row(record: Record) -> str:
    """Return the row of `alone` beside a record: what configurations have in common that share one."""
    config = record.config
    run, engine = config.get("run", {}), config.get("engine", {})
    how = [run.get("world_size"), run.get("threads_per_rank"), *map(engine.get, ALONE_KEYS)]
    return ALONE + json.dumps([config.get("workload"), *how], sort_keys=True)


def _turns(record: Record, cost: float) -> Turns:
    """Return the costs of the steps of each turn; one value where there were no turns."""
    timing, heat = record.timing, record.heat
    if timing is None or heat is None or not heat.turn_seconds or not timing.mean_step_s:
        return (np.array([cost]),)
    moved = cost - math.log(timing.mean_step_s)  # from seconds to the goal's metric
    count = len(heat.turn_seconds)
    steps = timing.step_seconds
    if len(steps) < count or min(steps) <= 0:
        return tuple(np.log([seconds]) + moved for seconds in heat.turn_seconds)
    return tuple(turn + moved for turn in _split(steps, count))


def alike_cells(cells: Sequence[Cell]) -> Iterator[tuple[Indices, Turns]]:
    """Yield the numbers and the turns [cells, steps] of cells that have as many turns of as many steps."""
    alike: dict[tuple[int, ...], list[int]] = {}
    for number, cell in enumerate(cells):
        alike.setdefault(tuple(map(len, cell.turns)), []).append(number)
    for numbers in alike.values():
        turns = zip(*(cells[number].turns for number in numbers), strict=True)
        yield np.array(numbers), tuple(np.stack(steps) for steps in turns)


def _mean(turns: Turns) -> Floats:
    return np.asarray(np.mean([np.log(np.exp(turn).mean(axis=-1)) for turn in turns], axis=0))


def _trimmed(turns: Turns) -> Floats:
    values = np.sort(np.concatenate(turns, axis=-1))
    cut = values.shape[-1] // 4
    return np.asarray(values[..., cut : values.shape[-1] - cut].mean(axis=-1))


def _lower(turns: Turns) -> Floats:
    values = np.sort(np.concatenate(turns, axis=-1))
    return np.asarray(values[..., : (values.shape[-1] + 1) // 2].mean(axis=-1))


Summary = Callable[[Turns], Floats]
SUMMARIES: Mapping[str, Summary] = {"mean": _mean, "trimmed": _trimmed, "lower half": _lower}
"""How a repeat becomes one value. A stall moves the mean of all steps, and hardly the means of some."""
