"""DeepSpeed by rules: the peaks that its ranks were counted to have, on machines without DeepSpeed, too."""

import os
from pathlib import Path
from typing import Any

import pytest

from tests.making import make_trial
from tools.benchmarks.estimates import counted
from zbench.errors import UsageError
from zbench.estimate.reading import estimate
from zbench.spec.trial import TrialSpec

PYTHON = os.environ.get("DEEPSPEED_PYTHON")
GPT: dict[str, Any] = {"model": "gpt", "options": {"layers": 3, "width": 192, "heads": 2}}
TIED: dict[str, Any] = {
    "model": "gpt",
    "options": {"layers": 2, "width": 64, "vocabulary": 8000, "tied_head": True},
}
MLP: dict[str, Any] = {"model": "mlp", "options": {"layers": 6, "hidden": 500}}
OFFLOADED = {"offload_optimizer": "cpu", "overlap_comm": False}
GATHERED = {"prefetch_bucket_size": 100_000, "param_persistence_threshold": 300, "sub_group_size": 200_000}
COUNTED: list[tuple[dict[str, Any], dict[str, Any], int]] = [
    (TIED, {"zero_stage": 0, "reduce_bucket_size": 2_000_000}, 34_221_692),
    (TIED, {"zero_stage": 1, "dtype": "bfloat16", "reduce_bucket_size": 50_000}, 33_102_356),
    (
        MLP,
        {
            "zero_stage": 2,
            "dtype": "bfloat16",
            "grad_accum_dtype": "bfloat16",
            "reduce_bucket_size": 50_000,
        },
        16_282_712,
    ),
    (
        GPT,
        {
            "zero_stage": 3,
            "dtype": "bfloat16",
            "offload_param": "cpu",
            "reduce_bucket_size": 400_000,
            **OFFLOADED,
            **GATHERED,
        },
        26_368_597,
    ),
    (
        TIED,
        {
            "zero_stage": 3,
            "gradient_accumulation_steps": 3,
            "reduce_bucket_size": 2_000_000,
            **OFFLOADED,
            **GATHERED,
        },
        44_694_557,
    ),
]
"""Model, engine, and the most that one of two ranks of DeepSpeed 0.19.8 allocated in a step."""
NEAR = 0.012


def trial(model: dict[str, Any], engine: dict[str, Any], **run: Any) -> TrialSpec:
    """Return a trial of DeepSpeed on two ranks."""
    workload = {"sequence_length": 64, "micro_batch_size": 4, "data": {"synthetic": True}, **model}
    ranks = {"world_size": 2, "device": "cpu", **run}
    parts = {"workload": workload, "run": ranks, "engine": {"engine": "deepspeed", **engine}}
    return TrialSpec.model_validate(parts)


@pytest.mark.parametrize(("model", "engine", "peak"), COUNTED)
def test_the_rules_give_the_peaks_that_were_counted(
    model: dict[str, Any], engine: dict[str, Any], peak: int
) -> None:
    ruled = estimate(trial(model, engine), Path.cwd()).peak_device_bytes
    assert ruled == pytest.approx(peak, rel=NEAR)


@pytest.mark.skipif(PYTHON is None, reason="DEEPSPEED_PYTHON names no interpreter that has DeepSpeed")
@pytest.mark.timeout(600)
def test_the_rules_are_those_of_the_deepspeed_that_is_here() -> None:
    trials = [trial(MLP, {"zero_stage": stage, "reduce_bucket_size": 50_000}) for stage in range(4)]
    for one, peak in zip(trials, counted(Path(str(PYTHON)), trials), strict=True):
        assert estimate(one, Path.cwd()).peak_device_bytes == pytest.approx(peak, rel=NEAR)


def test_a_plain_file_has_two_buffers_of_half_a_billion() -> None:
    zero = {"stage": 2, "overlap_comm": True}
    config = {"zero_optimization": zero, "gradient_accumulation_steps": 1}
    plain = trial(MLP, {"zero_stage": 2, "ds_config": config})
    buckets = estimate(plain, Path.cwd()).device["buckets"]
    assert buckets == pytest.approx(2 * 500_000_000 * 4, rel=0.01)


def test_offloaded_states_are_on_the_host_beside_a_card() -> None:
    """Part of a rank: master weights, gradient and two moments in float32, weights in bfloat16."""
    engine = {"zero_stage": 2, "dtype": "bfloat16", "offload_optimizer": "cpu", "reduce_bucket_size": 10_000}
    of_rank = estimate(trial(MLP, engine, device="cuda"), Path.cwd())
    states = of_rank.parameters / 2 * (4 + 4 + 8 + 2)
    assert of_rank.peak_host_bytes == pytest.approx(states, rel=0.2)
    assert "moments" not in of_rank.device


@pytest.mark.parametrize(
    ("key", "config"),
    [
        ("zero_optimization.zero_hpz_partition_size", {"zero_optimization": {"zero_hpz_partition_size": 8}}),
        ("zero_optimization.contiguous_gradients", {"zero_optimization": {"contiguous_gradients": False}}),
        (
            "zero_optimization.offload_param.device",
            {"zero_optimization": {"offload_param": {"device": "nvme"}}},
        ),
        ("torch_autocast.enabled", {"torch_autocast": {"enabled": True}}),
    ],
)
def test_a_key_without_a_rule_is_refused_by_its_name(key: str, config: dict[str, Any]) -> None:
    engine = {"engine": "deepspeed", "zero_stage": 3, "ds_config": config}
    with pytest.raises(UsageError, match=rf"engine\.ds_config: {key}: .*zbench run"):
        estimate(make_trial(engine), Path.cwd())
