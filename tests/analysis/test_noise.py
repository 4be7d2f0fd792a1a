"""The machine's noise: of a version against itself, and between runs."""

import math
from dataclasses import replace
from pathlib import Path

import pytest
from scipy.stats import t

from analysis.synthetic import MACHINE, trial, write_run
from zbench.analysis.compare import Comparison, PairedData
from zbench.analysis.decision import LEAST_HISTORY, RunNoise
from zbench.analysis.measurement import PairedMeasurement, Plan
from zbench.analysis.noise import noise_between_runs, noise_of_history, noise_report, reach
from zbench.analysis.paired import Control
from zbench.analysis.settings import PAIRED_THRESHOLDS, Settings
from zbench.analysis.sources import load_results
from zbench.analysis.trials import RunResults, Source
from zbench.launch.samples import KeptSamples

from .machine import Machine, OneByOne


def compared_with_itself(machine: Machine, blocks: int = 12) -> Comparison:
    settings = Settings(thresholds=PAIRED_THRESHOLDS)
    source, plan = Source("here"), Plan(blocks, blocks)
    samples = KeptSamples(OneByOne(machine), None, {})
    return PairedMeasurement(source, source, plan, settings, samples, lambda _: None).run()


def test_noise_is_that_of_the_machine() -> None:
    found = noise_report(compared_with_itself(Machine(), blocks=40))
    assert found.blocks == 40
    assert found.comparisons == 3
    assert found.alarms == 0
    assert found.noise == pytest.approx(0.01, rel=0.25), "two samples a side of 1 % each"
    assert found.margin < found.detectable


def test_an_alarm_is_counted() -> None:
    assert noise_report(compared_with_itself(Machine(factor=1.2))).alarms == 1


@pytest.mark.parametrize("blocks", [2, 12])
@pytest.mark.parametrize("power", [0.95, 0.9])
def test_a_change_is_seen_as_often_as_stated(blocks: int, power: float) -> None:
    student = t(blocks - 1)
    expected = (student.isf(0.01) + student.ppf(power)) * 0.05 / math.sqrt(blocks)
    assert reach(0.05, blocks, 0.01, power) == pytest.approx(expected)


def test_nothing_measured_is_unknown_and_not_zero() -> None:
    found = noise_report(compared_with_itself(Machine(outcome="crashed")))
    assert (found.blocks, found.comparisons) == (0, 0)
    assert math.isnan(found.noise)
    assert math.isnan(found.margin)
    assert math.isnan(reach(0.02, 1, 0.01, 0.9)), "one block shows no noise"


def test_a_report_rests_on_the_configurations_with_two_blocks_or_more() -> None:
    blocks = {"one": (0.5,), "two": (0.0, 0.01), "three": (0.0, 0.02, 0.01)}
    data = PairedData(blocks, Control(0.01, 0.1, 6), exact_only=False)
    found = noise_report(replace(compared_with_itself(Machine(), 8), paired=data))
    assert (found.blocks, found.comparisons, found.drift) == (2, 2, 0.1)
    assert found.noise == pytest.approx(0.01)
    assert found.margin / 0.005 == pytest.approx(round(found.margin / 0.005)), "rounded up to half a percent"


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
    for number in range(12):  # jobs of this machine that ran on another one
        there = [replace(one, machine="a node") for one in trial([5.0 + number % 2] * 3)]
        write_run(tmp_path / "example" / f"20270101-{number:06d}-aaaa", there)

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
    assert of_any_sweep.degrees == 13, "results alone do not say whose they are; sweeps are never mixed"


def test_too_few_runs_say_nothing(tmp_path: Path) -> None:
    kept(tmp_path, range(LEAST_HISTORY - 1))
    base = load_results(str(tmp_path / "example" / "20260101-000000-aaaa"), tmp_path)
    base = replace(base, source=replace(base.source, run_ids=()))
    assert noise_between_runs(base, base, tmp_path) == {}
    kept(tmp_path, range(LEAST_HISTORY - 1, LEAST_HISTORY))
    assert noise_between_runs(base, base, tmp_path).keys() == {base.trials[0].trial_id}
