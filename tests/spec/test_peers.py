"""Other engines: which stages each plays, what it must be told, and what it needs to be installed."""

import importlib.util
from importlib.machinery import ModuleSpec
from typing import Any

import pytest

from zbench.spec import peers
from zbench.spec.engine import EngineSpec
from zbench.spec.expand import conflict
from zbench.spec.peers import missing_package, peer_conflicts
from zbench.spec.run import RunSpec
from zbench.spec.workload import WorkloadSpec


def refused(**engine: Any) -> set[str]:
    """Return the keys of an engine configuration that its peer refuses."""
    return {key.removeprefix("engine.") for key, _ in peer_conflicts(EngineSpec.model_validate(engine))}


@pytest.mark.parametrize(
    ("name", "stages"),
    [("ddp", {0}), ("zero_redundancy", {1}), ("fsdp2", {2, 3}), ("deepspeed", {0, 1, 2, 3})],
)
def test_a_peer_plays_its_stages(name: str, stages: set[int]) -> None:
    played = {stage for stage in range(4) if "zero_stage" not in refused(engine=name, zero_stage=stage)}
    assert played == stages


@pytest.mark.parametrize(
    ("version", "extra", "keys"),
    [
        ("0.20", {"zero_stage": 1, "overlap_comm": False}, set()),
        ("0.19.8", {"zero_stage": 1}, {"overlap_comm"}),
        ("0.19.7", {"zero_stage": 3}, {"accumulation_mode"}),
    ],
)
def test_only_newer_deepspeed_leaves_the_last_backward_open(
    version: str, extra: dict[str, Any], keys: set[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(peers.importlib.util, "find_spec", lambda _: object())
    monkeypatch.setattr(peers.metadata, "version", lambda _: version)
    assert refused(engine="deepspeed", accumulation_mode="unmanaged", **extra) == keys
    assert refused(engine="deepspeed", accumulation_mode="multi_backward", **extra) == set()


@pytest.mark.parametrize(
    ("engine", "keys"),
    [
        ({"gradient_clipping": 1.0, "optimizer": {"lr": 0.5, "amsgrad": True}}, set()),
        ({"overlap_comm": False}, {"overlap_comm"}),
        ({"optimizer": {"moments_dtype": "bfloat16"}}, {"optimizer.moments_dtype"}),
        ({"param_groups": {"*.bias": {"bias_correction": False}}}, {"param_groups.*.bias_correction"}),
    ],
)
def test_what_a_peer_does_not_read_is_refused(engine: dict[str, Any], keys: set[str]) -> None:
    assert refused(engine="ddp", **engine) == keys
    for key, why in peer_conflicts(EngineSpec.model_validate({"engine": "ddp"} | engine)):
        assert why == f"ddp has no {key.removeprefix('engine.')}; leave it out, or set engine: builtin"


def test_a_missing_package_is_named_with_the_install_command(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    assert missing_package("deepspeed") == (
        "deepspeed is not installed; run `pip install deepspeed` or set engine: builtin"
    )
    alone = EngineSpec(engine="deepspeed"), RunSpec(), WorkloadSpec()
    assert conflict(*alone) == ("engine.engine", missing_package("deepspeed"))
    assert conflict(*alone, simulated=True) is None
    assert missing_package("ddp") is missing_package("builtin") is missing_package("mine:build") is None
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: ModuleSpec(name, None))
    assert missing_package("deepspeed") is None
