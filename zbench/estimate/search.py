"""The smallest world size and the largest micro-batch that fit, by bisection."""

from collections.abc import Callable
from dataclasses import dataclass

from zbench.estimate.client import Simulator
from zbench.estimate.result import Estimate
from zbench.spec.trial import TrialSpec

LARGEST_WORLD, LARGEST_MICRO_BATCH = 4096, 4096


@dataclass(frozen=True, slots=True)
class Limits:
    """What still fits: None where nothing does."""

    smallest_world_size: int | None
    largest_micro_batch: int | None


def limits(simulator: Simulator, trial: TrialSpec, memory: int) -> Limits:
    """Return both limits of one configuration on devices of `memory` bytes."""

    def fits(section: str, key: str, value: int) -> bool:
        found = simulator.of(_with(trial, section, key, value))
        return isinstance(found, Estimate) and found.peak_device_bytes <= memory

    world = smallest(lambda n: fits("run", "world_size", n), LARGEST_WORLD)
    batch = largest(lambda n: fits("workload", "micro_batch_size", n), LARGEST_MICRO_BATCH)
    return Limits(world, batch)


def smallest(holds: Callable[[int], bool], most: int) -> int | None:
    """Return the least n from 1 to `most` for which `holds`, which holds for every larger n then."""
    above = 1
    while not holds(above):
        if above >= most:
            return None
        above = min(2 * above, most)
    below = above // 2
    while above - below > 1:
        middle = (below + above) // 2
        below, above = (below, middle) if holds(middle) else (middle, above)
    return above


def largest(holds: Callable[[int], bool], most: int) -> int | None:
    """Return the greatest n from 1 to `most` for which `holds`, which holds for every smaller n then."""
    first = smallest(lambda n: not holds(n), most)
    if first is None:
        return most
    return first - 1 or None


def _with(trial: TrialSpec, section: str, key: str, value: int) -> TrialSpec:
    changed = trial.model_dump(mode="json")
    changed[section][key] = value
    return TrialSpec.model_validate(changed)
