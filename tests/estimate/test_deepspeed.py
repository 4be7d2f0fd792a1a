"""DeepSpeed by rules: the peaks that its ranks were counted to have, on machines without DeepSpeed, too."""

import json
import os
from pathlib import Path
from typing import Any

import pytest

from tests.making import make_trial
from tools.benchmarks.estimates import counted
from zbench.errors import UsageError
from zbench.estimate.reading import estimate
from zbench.estimate.row import BY_RULES
from zbench.spec.trial import TrialSpec

PYTHON = os.environ.get("DEEPSPEED_PYTHON")
MLP: dict[str, Any] = {"model": "mlp", "options": {"layers": 6, "hidden": 500}}
RULES = Path(__file__).parents[2] / "results/benchmarks/deepspeed_rules.json"
"""The most that one of two ranks of DeepSpeed 0.19.8 allocated in a step, and the result of the rules."""
SHORT = (1, 12)
OPTIONS = ("layers", "width", "heads", "hidden", "vocabulary", "tied_head")
NEAR = 0.012


def trial(model: dict[str, Any], engine: dict[str, Any], **run: Any) -> TrialSpec:
    """Return a trial of DeepSpeed on two ranks."""
    workload = {"sequence_length": 64, "micro_batch_size": 4, "data": {"synthetic": True}, **model}
    ranks = {"world_size": 2, "device": "cpu", **run}
    parts = {"workload": workload, "run": ranks, "engine": {"engine": "deepspeed", **engine}}
    return TrialSpec.model_validate(parts)


@pytest.mark.parametrize(
    "row",
    [
        pytest.param(row, marks=[] if number in SHORT else [pytest.mark.check])
        for number, row in enumerate(json.loads(RULES.read_text())["findings"])
    ],
)
def test_the_rules_give_what_is_published_beside_counted_peaks(row: dict[str, Any]) -> None:
    engine = dict(row["axes"])
    options = {key: engine.pop(key) for key in OPTIONS if key in engine}
    ruled = estimate(trial({"model": engine.pop("model"), "options": options}, engine), Path.cwd())
    assert ruled.peak_device_bytes == pytest.approx(row["zbench"], rel=1e-5)
    assert ruled.peak_device_bytes == pytest.approx(row["measured"], rel=BY_RULES["largest_error"])


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


@pytest.mark.parametrize("stage", [1, 3])
def test_states_are_shared_out_among_any_number_of_ranks(stage: int) -> None:
    engine = {"zero_stage": stage, "dtype": "bfloat16"}
    of = {world: estimate(trial(MLP, engine, world_size=world), Path.cwd()) for world in (2, 8, 64)}
    for world, one in of.items():
        moments = of[2].device["moments"] * 2 / world
        assert one.device["moments"] == pytest.approx(moments, rel=0.01), "two elements a rank of padding"


@pytest.mark.parametrize(
    ("key", "config"),
    [
        ("zero_optimization.zero_hpz_partition_size", {"zero_optimization": {"zero_hpz_partition_size": 8}}),
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
