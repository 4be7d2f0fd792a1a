"""torch's own engines as peers: they train the same model, and what they cannot do is refused beforehand."""

from typing import Any

import pytest
from torch import nn

from tests.worker.conftest import RunTrial, trial
from zbench.peers import zero_redundancy
from zbench.spec.engine import EngineSpec

STAGE = {"ddp": 0, "zero_redundancy": 1, "fsdp2": 3}
GPT: dict[str, Any] = {
    "model": "gpt",
    "options": {"layers": 2, "width": 32, "heads": 2, "tied_head": True},
    "sequence_length": 32,
}
GROUPS: dict[str, Any] = {
    "gradient_clipping": 0.5,
    "param_groups": {"*.bias": {"weight_decay": 0.0}, "positions.*": {"frozen": True}},
}


@pytest.mark.parametrize(
    ("peer", "mode", "backwards"),
    [
        pytest.param("ddp", "multi_backward", 3, marks=pytest.mark.check),
        pytest.param("zero_redundancy", "counted", 3, marks=pytest.mark.check),
        pytest.param("fsdp2", "counted", 3, marks=pytest.mark.check),
        ("fsdp2", "unmanaged", 3),
    ],
)
def test_peers_train_what_plain_pytorch_trains_in_every_mode(
    run_trial: RunTrial, peer: str, backwards: int, mode: str
) -> None:
    """Where nobody counts, every backward might be the last: each is reduced."""
    engine: dict[str, Any] = {"engine": peer, "zero_stage": STAGE[peer], **GROUPS}
    workload = GPT
    if mode == "counted":
        engine["gradient_accumulation_steps"] = backwards
    else:
        engine["accumulation_mode"] = mode
        workload = {**GPT, "backwards_per_step": backwards}
    record = run_trial(trial(engine, workload=workload, run={"steps": 1}))
    assert record.error is None
    assert record.correctness.verdict in ("identical", "equivalent")
    assert (record.correctness.grad_norm_max_abs_diff or 0.0) < 1e-4


def test_bytes_that_a_peer_holds_follow_from_what_it_shards(run_trial: RunTrial) -> None:
    held = {}
    for peer, stage in STAGE.items():
        record = run_trial(trial({"engine": peer, "zero_stage": stage}, verify="off", run={"steps": 1}))
        held[peer] = record.memory.by_category
    whole = held["ddp"]["parameters"]
    assert held["ddp"]["gradients"] == whole
    assert held["ddp"]["moments"] > 2 * whole  # and a step count a parameter
    assert held["zero_redundancy"]["moments"] < held["ddp"]["moments"]
    assert held["fsdp2"]["parameters"] == held["fsdp2"]["gradients"] == whole // 2


def test_the_sharded_optimizer_shares_its_buckets_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without views ZeroRedundancyOptimizer holds each parameter twice, and a comparison would flatter us."""
    keys: dict[str, Any] = {}
    monkeypatch.setattr(zero_redundancy, "ZeroRedundancyOptimizer", lambda *_, **kwargs: keys.update(kwargs))
    monkeypatch.setattr(zero_redundancy, "wrap", lambda model, *_: model)
    zero_redundancy.build_engine(nn.Linear(2, 2), EngineSpec(engine="zero_redundancy", zero_stage=1))
    assert keys["parameters_as_bucket_view"] is True
    assert keys["fused"] is True
