"""torch's own engines: their simulated peaks are the real ones, and their memory has its categories."""

import itertools
from pathlib import Path
from typing import Any

import pytest

from tests.engine.covering import covering
from tests.estimate.conftest import Simulate
from tests.estimate.test_reality import check
from tests.estimate.test_sites import check_categories
from tests.peers.test_fsdp2 import AXES as FSDP2
from tests.peers.test_fsdp2 import row_of
from tools.benchmarks import model_estimates
from zbench.estimate.reading import estimate
from zbench.estimate.simulate import simulate as simulated_step
from zbench.spec.trial import TrialSpec
from zbench.testing.ranks import RankPool

WIDE: dict[str, Any] = {"model": "gpt", "options": {"layers": 3, "width": 128, "heads": 2}}
"""More gradients than one bucket of DDP holds."""
PARAMETERS = 662_656
MODELS: list[dict[str, Any]] = [
    {**WIDE, "sequence_length": 16},
    {"model": "mlp", "options": {"layers": 3, "hidden": 48}, "sequence_length": 16},
    {
        "model": "gpt",
        "options": {"layers": 4, "width": 16, "heads": 2, "vocabulary": 11, "tied_head": True},
        "sequence_length": 40,
        "activation_checkpointing": True,
    },
]
COMMON: dict[str, list[Any]] = {
    "model": MODELS,
    "world_size": [2, 4],
    "clipping": [{}, {"gradient_clipping": 0.5}],
    "optimizer": [
        {},
        {"optimizer": {"name": "adam", "amsgrad": True}},
        {"param_groups": {"*bias": {"weight_decay": 0.0}, "*s.1.*": {"frozen": True}}},
    ],
    "accumulation": [
        {},
        {"gradient_accumulation_steps": 3},
        {"gradient_accumulation_steps": 3, "reduce_at": "each_backward"},
        {"accumulation_mode": "unmanaged"},
    ],
}
REPLICATED = [{"engine": "ddp", "zero_stage": 0}, {"engine": "zero_redundancy", "zero_stage": 1}]
BUCKETS: dict[str, list[Any]] = {
    "engine": REPLICATED,
    "buckets": [{}, {"reduce_bucket_size": 262_144}, {"reduce_bucket_size": 600_000}],
}
SHARDED = {**FSDP2, "stage": [{"engine": "fsdp2", **stage} for stage in FSDP2["stage"]]}
SHORT = 3
DRAWN = [0, *(pytest.param(k, marks=pytest.mark.check) for k in range(1, SHORT))]
LEFT_OUT = {*itertools.product(("mixtral", "biogpt"), model_estimates.SIZES), ("helium", "small")}
"""What they compute depends on values, or their sizes do not fit together."""
ARCHITECTURES = sorted({*itertools.product(model_estimates.MODELS, model_estimates.SIZES)} - LEFT_OUT)

ASIDE = 16
"""FSDP2 holds 4 bytes a rank more than its simulation."""


def trial_of(point: dict[str, Any]) -> TrialSpec | None:
    """Return the trial of one point; None if the engine has no such stage."""
    engine = row_of([value for axis, value in point.items() if axis not in ("model", "world_size")])
    if engine is None:
        return None
    workload = {**point["model"], "data": {"synthetic": True}}
    run = {"world_size": point["world_size"], "device": "cpu"}
    return TrialSpec.model_validate({"workload": workload, "run": run, "engine": engine})


def trials(axes: dict[str, list[Any]]) -> list[TrialSpec]:
    """Return trials in which every two choices meet."""
    points = covering({**axes, **COMMON}, 2, seed=3)
    return [trial for point in points if (trial := trial_of(point)) is not None]


BUCKETED, OF_FSDP2 = trials(BUCKETS), trials(SHARDED)


@pytest.mark.parametrize("k", DRAWN)
def test_buckets_of_ddp_are_the_allocators_to_the_byte(ranks: RankPool, simulate: Simulate, k: int) -> None:
    check(ranks, simulate, BUCKETED[k])


@pytest.mark.parametrize("k", DRAWN)
def test_the_peak_of_fsdp2_is_the_allocators(ranks: RankPool, simulate: Simulate, k: int) -> None:
    check(ranks, simulate, OF_FSDP2[k], apart=ASIDE)


@pytest.mark.soak
@pytest.mark.parametrize("k", range(SHORT, len(BUCKETED)))
def test_every_pair_of_ddps_choices_is_to_the_byte(ranks: RankPool, simulate: Simulate, k: int) -> None:
    check(ranks, simulate, BUCKETED[k])


@pytest.mark.soak
@pytest.mark.parametrize("k", range(SHORT, len(OF_FSDP2)))
def test_every_pair_of_fsdp2s_choices_is_the_allocators(ranks: RankPool, simulate: Simulate, k: int) -> None:
    check(ranks, simulate, OF_FSDP2[k], apart=ASIDE)


@pytest.mark.soak
@pytest.mark.parametrize(("kind", "size"), ARCHITECTURES)
def test_architectures_of_transformers_are_within_the_bar(
    ranks: RankPool, simulate: Simulate, tmp_path: Path, kind: str, size: str
) -> None:
    for trial in model_estimates.trials(tmp_path, [kind], [size]):
        if (engine := trial.engine.engine) != "builtin":
            real = ranks.run(2, "tests.estimate.conftest:measure", trial.model_dump(mode="json"))
            for rank, measured in enumerate(real):
                peak = simulate(trial, rank).peak
                counted = measured["between"]
                print(f"{engine} {kind} {size}: simulated {peak:,}, counted {counted:,}")
                assert abs(peak / counted - 1) < 0.003, f"{engine}, rank {rank}: {peak:,} for {counted:,}"


@pytest.mark.check
@pytest.mark.parametrize(
    "engine",
    [
        *REPLICATED,
        {"engine": "fsdp2", "zero_stage": 3},
        {"engine": "fsdp2", "offload_optimizer": "cpu", "zero_stage": 3},
    ],
)
def test_between_steps_the_categories_are_the_engines_own(engine: dict[str, Any]) -> None:
    check_categories(simulated_step(trial(engine, device="cuda"), Path.cwd()), ["parameters", "moments"])


@pytest.mark.check
def test_gradients_of_an_offloaded_rank_are_on_its_host() -> None:
    offloaded = trial({"engine": "fsdp2", "zero_stage": 3, "offload_param": "cpu"}, device="cuda")
    step = simulated_step(offloaded, Path.cwd())
    held = step.ledger.by_category(step.ledger.peak_moment[True], host=True)
    assert held["gradients"] == held["parameters"] == step.engine_bytes["host_parameters"]
    assert step.work.copied_bytes > 2 * held["parameters"], "gathered, gradients, and blocks gathered again"


@pytest.mark.check
def test_a_rank_sends_what_its_engines_collectives_need() -> None:
    """Of eight ranks: a ring reduces and gathers; FSDP2 gathers a second time in its backward."""
    sent = {}
    for engine in (*REPLICATED, {"engine": "fsdp2", "zero_stage": 3}):
        traffic = estimate(trial(engine, world_size=8), Path.cwd()).traffic
        sent[engine["engine"]] = {name: one["sent"] for name, one in traffic.items()}
    share = 4 * PARAMETERS * 7 // 8
    assert sent["ddp"] == {"all_reduce": 2 * share}
    assert sent["zero_redundancy"]["broadcast"] == pytest.approx(share, rel=0.01)
    assert sent["fsdp2"]["reduce_scatter"] == pytest.approx(share, rel=0.01)
    assert share < sent["fsdp2"]["all_gather"] <= 2 * share


def trial(engine: dict[str, Any], *, world_size: int = 4, device: str = "auto") -> TrialSpec:
    """Return a trial of a model of PARAMETERS elements."""
    workload = {**WIDE, "sequence_length": 16, "data": {"synthetic": True}}
    run = {"world_size": world_size, "device": device}
    return TrialSpec.model_validate({"workload": workload, "run": run, "engine": engine})
