"""Times of steps that others published: inside the printed range, and rates that come from other runs.

All that a layer takes is the same for each layer, so two and four layers show what many take.
"""

import json
import math
import statistics
from pathlib import Path
from typing import Any

import pytest

from zbench.estimate.reading import estimate
from zbench.estimate.roofline import WIDTH, StepTime, range_of, step_time
from zbench.spec.cards import CARDS
from zbench.spec.machine import MachineSpec
from zbench.spec.trial import TrialSpec

PUBLISHED = json.loads((Path(__file__).parents[2] / "results/benchmarks/published.json").read_text())
TIMES = PUBLISHED["step_times"]
SHAPES = PUBLISHED["llm_foundry"]["shapes"]
CALIBRATED = [dict(zip(TIMES["columns"], row, strict=True)) for row in TIMES["calibrated"]]
FEW = (2, 4)
PARTS = ("compute_s", "collectives_s", "copies_s", "updates_s")


def forecast(row: dict[str, Any]) -> StepTime:
    """Return the time of a step of one of the GPTs of LLM-Foundry, on 8 cards."""
    layers, width, heads = row.get("shape") or SHAPES[row["model"]]
    few = [_of_layers(row, n, width, heads) for n in FEW]
    two, four = ([getattr(time, part) for part in PARTS] for time in few)
    more = (layers - FEW[0]) / (FEW[1] - FEW[0])
    return range_of(*(a + (b - a) * more for a, b in zip(two, four, strict=True)))


def _of_layers(row: dict[str, Any], layers: int, width: int, heads: int) -> StepTime:
    sizes = {"layers": layers, "width": width, "heads": heads, "vocabulary": 50368, "tied_head": True}
    workload = {
        "model": "gpt",
        "options": sizes,
        "loss_chunks": 6,
        "sequence_length": row["tokens"],
        "micro_batch_size": row["micro_batch"],
        "activation_checkpointing": bool(row.get("checkpointing")),
    }
    engine = {"engine": "fsdp2", "zero_stage": 3, "dtype": "bfloat16"}
    engine["gradient_accumulation_steps"] = row.get("micro_batches", 1)
    run = {"world_size": 8, "device": "cuda"}
    trial = TrialSpec.model_validate({"workload": workload, "run": run, "engine": engine})
    machine = MachineSpec.model_validate(CARDS[row["card"]].rates())
    time = step_time(estimate(trial, Path.cwd()), trial, machine)
    assert isinstance(time, StepTime), time
    return time


@pytest.mark.parametrize(
    "row",
    [pytest.param(r, marks=[] if "7B" in r["name"] else pytest.mark.check) for r in TIMES["held"]],
    ids=lambda row: row["name"],
)
def test_a_published_step_is_inside_the_range(row: dict[str, Any]) -> None:
    time = forecast(row)
    assert time.low_s <= row["seconds"] <= time.high_s
    assert time.high_s / time.low_s == pytest.approx(WIDTH)
    assert WIDTH <= 1.6


def test_rates_come_from_other_runs_than_those_of_the_bars() -> None:
    assert {row["model"] for row in CALIBRATED}.isdisjoint({"7b", "1b"})


@pytest.mark.soak
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("card", ["A100-80GB", "H100"])
def test_the_share_of_the_peak_is_that_of_the_median_run(card: str) -> None:
    rows = [row for row in CALIBRATED if row["card"] == card]
    times = [forecast(row) for row in rows]
    ratios = [math.sqrt(t.low_s * t.high_s) / row["seconds"] for t, row in zip(times, rows, strict=True)]
    assert statistics.median(ratios) == pytest.approx(1.0, abs=0.03)
    inside = [t.low_s <= row["seconds"] <= t.high_s for t, row in zip(times, rows, strict=True)]
    assert sum(inside) >= 0.75 * len(inside)


@pytest.mark.check
@pytest.mark.parametrize(("dtype", "micro_batch", "seconds"), TIMES["v100"]["rows"])
def test_a_v100_attains_what_was_published(dtype: str, micro_batch: int, seconds: float) -> None:
    pytest.importorskip("transformers")
    workload = {"model": "hf:bert-large-uncased", "sequence_length": 512, "micro_batch_size": micro_batch}
    document = {"workload": workload, "run": {"device": "cuda"}, "engine": {"dtype": dtype}}
    trial = TrialSpec.model_validate(document)
    machine = MachineSpec.model_validate(CARDS["V100-32GB"].rates())
    time = step_time(estimate(trial, Path.cwd()), trial, machine)
    assert isinstance(time, StepTime)
    assert time.compute_s == pytest.approx(seconds, rel=0.05)
