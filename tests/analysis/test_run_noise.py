"""The noise between runs, from the runs before: by the figure that comparisons use, undisturbed runs only."""

import math
from dataclasses import replace
from pathlib import Path

import pytest

from analysis.synthetic import MACHINE, trial, write_run
from zbench.analysis.decision import LEAST_HISTORY, RunNoise
from zbench.analysis.noise import noise_between_runs, noise_of_history
from zbench.analysis.sources import load_results
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


def kept(out: Path, numbers: range) -> None:
    """Write runs of sweep `example` to be found again; odd ones are a tenth slower."""
    for number in numbers:
        run = out / "example" / f"20260101-{number:06d}-aaaa"
        write_run(run, trial([0.1 * (1 + number % 2 / 10)] * 3))


def test_the_noise_is_that_of_earlier_runs_of_the_sweep_on_the_machine(tmp_path: Path) -> None:
    kept(tmp_path, range(14))
    write_run(tmp_path / "other" / "20260101-000000-aaaa", trial([5.0] * 3))
    damaged = tmp_path / "example" / "20250101-000000-aaaa"
    write_run(damaged, trial([5.0] * 3))
    (damaged / "trials.jsonl").write_text("{}\n")
    elsewhere = tmp_path / "example" / "20250102-000000-aaaa"
    write_run(elsewhere, trial([5.0] * 3), machine={"cpu": "Another CPU"})

    def said(*run_ids: str, sweep: str | None = "example") -> dict[str, RunNoise]:
        base = load_results(str(tmp_path / "example" / "20260101-000000-aaaa"), tmp_path)
        base = replace(base, source=replace(base.source, run_ids=run_ids, sweep=sweep))
        return noise_between_runs(base, base, tmp_path)

    (all_of_them,) = said().values()
    assert all_of_them.degrees == 13
    assert all_of_them.spread == pytest.approx(math.log(1.1) / 2 * math.sqrt(14 / 13))
    (without,) = said("20260101-000000-aaaa", "20260101-000001-aaaa").values()
    assert without.degrees == 11, "the compared runs say nothing of what lies between them"
    (of_any_sweep,) = said(sweep=None).values()
    assert of_any_sweep.degrees == 14, "results alone do not say whose they are"


def test_too_few_runs_say_nothing(tmp_path: Path) -> None:
    kept(tmp_path, range(LEAST_HISTORY - 1))
    base = load_results(str(tmp_path / "example" / "20260101-000000-aaaa"), tmp_path)
    base = replace(base, source=replace(base.source, run_ids=()))
    assert noise_between_runs(base, base, tmp_path) == {}
    kept(tmp_path, range(LEAST_HISTORY - 1, LEAST_HISTORY))
    assert noise_between_runs(base, base, tmp_path).keys() == {base.trials[0].trial_id}
