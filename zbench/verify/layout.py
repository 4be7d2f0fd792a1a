"""Which rank shows which run of each parameter: every element must be shown, and by runs that do not overlap.

Several ranks may show the same run: all of them with replicated parameters, one of each shard group with
hybrid sharding. Each such rank is a replica of the run. The first replicas of all runs make up a whole model,
so do the second ones, and so on.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from zbench.verify.sums import Run


@dataclass(frozen=True, slots=True)
class OwnRun:
    """A run of this rank. key: of the engine's part. replica: the place of this rank among the `replicas`
    ranks that show the run. is_mine: whether this rank, of all of them, adds the run to sums over ranks.
    """

    run: Run
    key: str
    replica: int
    replicas: int
    is_mine: bool


def own_runs(
    of_ranks: Sequence[Mapping[str, Run]], rank: int, shapes: Mapping[str, Sequence[int]]
) -> list[OwnRun] | str:
    """Return the runs of a rank; or, in one sentence, which elements are shown twice or by nobody.

    of_ranks: the runs that each rank shows, by the key of the engine's part. shapes: of all parameters.
    """
    holders: dict[Run, list[int]] = {}
    for number, runs in enumerate(of_ranks):
        for run in runs.values():
            if run.length:
                holders.setdefault(run, []).append(number)
    shown: dict[str, list[Run]] = {}
    for run in holders:
        shown.setdefault(run.name, []).append(run)
    for name, shape in shapes.items():
        if mistake := _mistake(name, sorted(shown.get(name, []), key=lambda run: run.start), shape):
            return mistake
    own = []
    for index, (run, ranks) in enumerate(holders.items()):
        if rank in ranks:
            key = next(key for key, value in of_ranks[rank].items() if value == run)
            is_mine = ranks[index % len(ranks)] == rank
            own.append(OwnRun(run, key, ranks.index(rank), len(ranks), is_mine))
    return own


def _mistake(name: str, runs: Sequence[Run], shape: Sequence[int]) -> str | None:
    """Return what is wrong with the runs of a parameter, in order of their first elements."""
    stop = 0
    for run in runs:
        if run.start < stop:
            return f"elements {run.start:,} to {min(stop, run.stop):,} of {name} are shown twice"
        if run.start > stop:
            return f"elements {stop:,} to {run.start:,} of {name} are shown by no rank"
        stop = run.stop
    elements = Run.whole(name, shape).length
    if stop < elements:
        return f"elements {stop:,} to {elements:,} of {name} are shown by no rank"
    if stop > elements:
        return f"elements up to {stop:,} of {name} are shown, which has {elements:,}"
    return None
