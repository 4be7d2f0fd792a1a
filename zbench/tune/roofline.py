"""The order in which a search tries points that it would try anyway: by the machine's rates, fastest first.

None is left out for it.
"""

from zbench.estimate.result import Estimate
from zbench.estimate.roofline import step_time
from zbench.spec.machine import MachineSpec, described
from zbench.spec.trial import TrialSpec
from zbench.tune.memory import Ask
from zbench.tune.prune import work_per_step
from zbench.tune.space import Point, Space

MOST = 40
"""So many points are simulated for their order; those behind keep their places."""


def fastest_first(points: list[Point], space: Space, ask: Ask) -> list[Point]:
    """Return the same points, the first MOST of them by work per second; where that is not known, last.

    They keep their order in a sweep without `machine:`, and where time is not the first goal.
    """
    machine = described(space.sweep.machine, space.sweep.place)
    if machine is None:
        return points
    rates = [_rate(space, point, ask, machine) for point in points[:MOST]]
    order = sorted(range(len(rates)), key=lambda k: -rates[k])  # stable: equals keep their order
    return [points[k] for k in order] + points[MOST:]


def _rate(space: Space, point: Point, ask: Ask, machine: MachineSpec) -> float:
    """Return work per second by the middle of the estimated time; 0 where there is none."""
    trial = space.trial(point)
    assert isinstance(trial, TrialSpec), "only points that can run are put in an order"
    work = work_per_step(trial, space.sweep.objective.goals[0])
    found = ask(trial) if work is not None else None
    time = step_time(found, trial, machine) if isinstance(found, Estimate) else ""
    return 0.0 if work is None or isinstance(time, str) else work / (time.low_s * time.high_s) ** 0.5
