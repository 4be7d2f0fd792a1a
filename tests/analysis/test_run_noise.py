"""The noise between runs, from the runs before: by the figure that comparisons use, undisturbed runs only."""

import math
from dataclasses import replace

import pytest

from analysis.synthetic import MACHINE, trial
from zbench.analysis.run_noise import noise_of_history
from zbench.analysis.trials import RunResults, Source

LOADED = "the machine was loaded: other processes took 90% of the CPU time"


def runs(times: list[list[float]], disturbed: frozenset[int] = frozenset()) -> list[RunResults]:
    found = []
    for number, steps in enumerate(times):
        records = [replace(r, warnings=[LOADED] if number in disturbed else []) for r in trial(steps)]
        found.append(RunResults.of(Source("run", run_ids=(f"run{number}",), facts=MACHINE), records))
    return found


def test_a_run_counts_by_the_mean_of_its_repeats_as_in_a_comparison() -> None:
    """Seen in simulation: medians of bimodal repeats hide noise, and false answers rose to 1.6 % of 1 %."""
    slow = [[0.1, 0.1, 0.1, 0.15, 0.15], [0.1] * 5] * 6
    (noise,) = noise_of_history(runs(slow)).values()
    half = math.log(1.5) * 2 / 5 / 2
    assert noise.spread == pytest.approx(half * math.sqrt(12 / 11))
    assert noise.degrees == 11


def test_disturbed_runs_say_nothing_of_the_machine() -> None:
    times = [[0.1 + 0.001 * (number % 2)] * 5 for number in range(12)] + [[0.3] * 5]
    quiet = noise_of_history(runs(times[:12]))
    assert noise_of_history(runs(times, frozenset({12}))) == quiet
    assert noise_of_history(runs(times[:12], frozenset({3, 4, 5}))) == {}, "nine runs are too few"
