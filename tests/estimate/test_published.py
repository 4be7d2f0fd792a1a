"""Memory figures that others published: a step that ran on a card fits it, and states have the papers' sizes.

All that a layer takes is the same for each layer, so few layers show what many take: as many as have all
buckets in flight.
"""

import json
from pathlib import Path
from typing import Any

import pytest

from zbench.estimate.reading import estimate
from zbench.estimate.result import CONTEXT, Estimate
from zbench.estimate.simulate import simulate
from zbench.spec.trial import TrialSpec

PUBLISHED = json.loads((Path(__file__).parents[2] / "results/benchmarks/published.json").read_text())
FOUNDRY = PUBLISHED["llm_foundry"]
GIB = 1 << 30
USABLE = {"A100-40GB": 39.4, "A100-80GB": 79.1, "H100": 79.1}
"""GiB that a process can take of each card."""
DRAWN = (3,)
LOSS_CHUNKS = 6
"""LLM-Foundry's loss is one kernel that writes gradients over logits. In so many parts ours takes as much."""


def simulated(layers: int, width: int, vocabulary: int, **sections: dict[str, Any]) -> Estimate:
    options = {"layers": layers, "width": width, "heads": width // 64, "vocabulary": vocabulary}
    workload = sections["workload"]
    options |= workload.get("options", {})
    run = {"device": "cuda", **sections["run"]}
    document = {"workload": {**workload, "options": options}, "run": run, "engine": sections["engine"]}
    return estimate(TrialSpec.model_validate(document), Path.cwd())


FEW = (6, 8)


def extended(layers: int, six: float, eight: float) -> float:
    """Return the bytes that `layers` layers take."""
    return six + (eight - six) / 2 * (layers - 6)


def per_parameter(world_size: int, **engine: Any) -> float:
    """Return the bytes that a rank keeps for a parameter, without buffers of collectives."""
    trial = TrialSpec.model_validate(
        {
            "workload": {
                "model": "gpt",
                "options": {"layers": 2, "width": 512, "heads": 8, "vocabulary": 512},
                "sequence_length": 16,
            },
            "run": {"world_size": world_size, "device": "cuda"},
            "engine": {"dtype": "bfloat16", **engine},
        }
    )
    step = simulate(trial, Path.cwd())
    categories = ("parameters", "gradients", "master", "moments")
    return sum(step.engine_bytes.get(name, 0) for name in categories) / step.parameters


def rows_of_foundry() -> list[Any]:
    rows = [dict(zip(FOUNDRY["columns"], row, strict=True)) for row in FOUNDRY["rows"]]
    marks = [pytest.mark.check if i in DRAWN else pytest.mark.soak for i in range(len(rows))]
    name = "{model}-{tokens}-{micro_batch}x{gpus}-{card}".format
    return [pytest.param(row, id=name(**row), marks=mark) for row, mark in zip(rows, marks, strict=True)]


@pytest.mark.parametrize("row", rows_of_foundry())
def test_what_llm_foundry_ran_on_a_card_fits_it(row: dict[str, Any]) -> None:
    layers, width, heads = FOUNDRY["shapes"][row["model"]]
    workload = {
        "model": "gpt",
        "options": {"heads": heads, "tied_head": True},
        "loss_chunks": LOSS_CHUNKS,
        "sequence_length": row["tokens"],
        "micro_batch_size": row["micro_batch"],
        "activation_checkpointing": bool(row["checkpointing"]),
    }
    engine = {
        "zero_stage": row["stage"],
        "dtype": "bfloat16",
        "gradient_accumulation_steps": min(row["micro_batches"], 2),
    }
    run = {"world_size": row["gpus"]}
    few = [simulated(n, width, 50368, workload=workload, run=run, engine=engine) for n in FEW]
    parameters = extended(layers, *(step.parameters for step in few))
    assert parameters + (2048 - row["tokens"]) * width == FOUNDRY["parameters"][row["model"]]
    allocated = extended(layers, *(step.peak_device_bytes for step in few))
    assert (allocated + CONTEXT[0]) / GIB < USABLE[row["card"]]


@pytest.mark.parametrize(
    ("stage", "wider"),
    [
        (3, -4 / 64),
        *(pytest.param(*case, marks=pytest.mark.check) for case in ((0, 2.0), (1, 4 / 64), (2, 2 / 64))),
    ],
)
def test_states_are_those_of_zero_with_sums_in_float32(stage: int, wider: float) -> None:
    """wider: the bytes of sums over the ranks. Stage 3 frees its sums, 4 bytes, after a step."""
    engine = {"zero_stage": stage, "grad_accum_dtype": "bfloat16"}
    if stage:
        engine["gradient_accumulation_steps"] = 2
    if stage == 3:
        engine["param_persistence_threshold"] = 0
    published = PUBLISHED["zero"]["GB"][stage] / 7.5
    assert per_parameter(64, **engine) == pytest.approx(published + wider, rel=0.03)


@pytest.mark.check
def test_more_ranks_save_what_torchtitan_measured() -> None:
    """From 8 to 128 ranks only states shrink: 16 bytes a parameter of FSDP2."""
    few, many = (per_parameter(n, engine="fsdp2", zero_stage=3) for n in (8, 128))
    saved = (few - many) * 8.03e9 / GIB
    assert saved == pytest.approx(PUBLISHED["torchtitan"]["8"] - PUBLISHED["torchtitan"]["128"], rel=0.1)


def test_states_are_those_of_deepspeeds_baseline_in_bfloat16() -> None:
    """Of 6.856 G parameters on 4 ranks. Stage 3 of ours frees its sums of gradients after a step."""
    nbytes = per_parameter(4, zero_stage=3, param_persistence_threshold=0)
    total = (nbytes + 4 / 4) * 6.856e9 / GIB
    assert total == pytest.approx(PUBLISHED["deepspeed_bf16"]["allocated"], rel=0.02)
