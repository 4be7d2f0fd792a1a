"""Finds the smallest world size, the largest micro-batch and the longest sequence that fit, by bisection."""

from bisect import bisect_left
from collections.abc import Callable
from dataclasses import dataclass, field

from zbench.estimate.client import Simulator
from zbench.estimate.result import Capacity, NotSimulated
from zbench.spec.trial import TrialSpec, has_tokens, ranks_of_a_node

LARGEST_WORLD, LARGEST_MICRO_BATCH = 4096, 4096
TOKENS = 128
LONGEST = 1 << 20
"""Lengths of a sequence are searched in steps of TOKENS."""


@dataclass(frozen=True, slots=True)
class Limits:
    """The limits within which a configuration fits; None if none fits, or if `undecided` names the limit.

    undecided: limit -> the value that could not be simulated, and why. bounded_by: limit -> what else than
    memory ends it, in words.
    """

    smallest_world_size: int | None
    largest_micro_batch: int | None
    longest_sequence: int | None = None
    undecided: dict[str, str] = field(default_factory=dict)
    bounded_by: dict[str, str] = field(default_factory=dict)


class _UndecidedError(Exception):
    """The bisection needs a value that is invalid or cannot be simulated."""


def limits(simulator: Simulator, trial: TrialSpec, room: Capacity, positions: int | None = None) -> Limits:
    """Return the limits of one configuration in the memory that there is. positions: the model's, if known.

    If a value cannot be simulated, the limit is undecided: such a value never counts as "does not fit".
    """

    def fits(section: str, key: str, value: int) -> bool:
        try:
            changed = _with(trial, section, key, value)
            estimate = simulator.of(changed)
        except ValueError as error:
            raise _UndecidedError(f"{key}={value}: {error}") from None
        if isinstance(estimate, NotSimulated):
            raise _UndecidedError(f"{key}={value}: {estimate.reason}")
        return room.fits(estimate, ranks_of_a_node(changed))

    undecided: dict[str, str] = {}

    def decided(name: str, search: Callable[[], int | None]) -> int | None:
        try:
            return search()
        except _UndecidedError as error:
            undecided[name] = str(error)
            return None

    group = trial.engine.shard_group_size or 1
    groups = decided(
        "smallest_world_size",
        lambda: smallest(lambda n: fits("run", "world_size", n * group), LARGEST_WORLD // group),
    )
    batch = decided(
        "largest_micro_batch",
        lambda: largest(lambda n: fits("workload", "micro_batch_size", n), LARGEST_MICRO_BATCH),
    )
    longest = min(LONGEST, positions or LONGEST) // TOKENS
    tokens = has_tokens(trial) and decided(
        "longest_sequence",
        lambda: largest(lambda n: fits("workload", "sequence_length", n * TOKENS), longest),
    )
    bounded_by = {}
    if tokens and tokens == longest:
        bounded_by["longest_sequence"] = "not sought further" if positions is None else "the model's maximum"
    if batch == LARGEST_MICRO_BATCH:
        bounded_by["largest_micro_batch"] = "not sought further"
    return Limits(groups and groups * group, batch, (tokens or 0) * TOKENS or None, undecided, bounded_by)


def smallest(holds: Callable[[int], bool], most: int) -> int | None:
    """Return the smallest n in [1, most] with holds(n), or None. `holds` must not become false again."""
    above = 1
    while not holds(above):
        if above >= most:
            return None
        above = min(2 * above, most)
    return bisect_left(range(above), True, lo=1, key=holds)


def largest(holds: Callable[[int], bool], most: int) -> int | None:
    """Return the largest n in [1, most] with holds(n), or None. `holds` must not become true again."""
    first = smallest(lambda n: not holds(n), most)
    return most if first is None else first - 1 or None


def _with(trial: TrialSpec, section: str, key: str, value: int) -> TrialSpec:
    changed = trial.model_dump(mode="json")
    changed[section][key] = value
    return TrialSpec.model_validate(changed)
