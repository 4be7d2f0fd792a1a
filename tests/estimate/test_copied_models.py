"""Models with copied layers and listed parameters: the same peak as on real ranks, or as of plain layers."""

from pathlib import Path
from typing import Any

import pytest

from tests.estimate.conftest import Simulate
from tests.estimate.test_reality import check
from zbench.estimate.reading import answer
from zbench.estimate.result import Estimate
from zbench.spec.trial import TrialSpec
from zbench.testing.ranks import RankPool


def trial(model: str, engine: dict[str, Any], **options: Any) -> TrialSpec:
    workload = {"model": f"tests.estimate.copied:{model}", "options": options, "sequence_length": 8}
    return TrialSpec.model_validate({"workload": workload, "run": {"world_size": 2}, "engine": engine})


def peak(model: str, engine: dict[str, Any], **options: Any) -> int:
    outcome = answer(trial(model, engine, **options), Path.cwd())
    assert isinstance(outcome, Estimate), outcome
    return outcome.peak_device_bytes


@pytest.mark.parametrize("model", ["Cloned", "Copied"])
@pytest.mark.parametrize("stage", [0, pytest.param(3, marks=pytest.mark.check)])
def test_a_model_of_copies_has_the_peak_of_real_ranks(
    ranks: RankPool, simulate: Simulate, model: str, stage: int
) -> None:
    check(ranks, simulate, trial(model, {"zero_stage": stage}))


@pytest.mark.parametrize(
    "engine",
    [
        {"engine": "fsdp2", "zero_stage": 3},
        *(
            pytest.param(engine, marks=pytest.mark.check)
            for engine in ({"engine": "ddp"}, {"engine": "deepspeed", "zero_stage": 3}, {"zero_stage": 3})
        ),
    ],
)
def test_copies_take_what_layers_that_are_made_anew_take(engine: dict[str, Any]) -> None:
    assert peak("Copied", engine) == peak("Copied", engine, is_copied=False)


@pytest.mark.parametrize("place", ["list", pytest.param("dict", marks=pytest.mark.check)])
def test_deepspeed_gathers_listed_parameters_for_the_module_that_reads_them(place: str) -> None:
    engine = {"engine": "deepspeed", "zero_stage": 3}
    assert peak("Listed", engine, place=place) == peak("Listed", engine, place="self")
