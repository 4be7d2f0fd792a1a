"""The configuration that `engine: deepspeed` is built with says everything that it is claimed to read."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.making import NEEDED, OTHER
from zbench.peers.deepspeed import configuration
from zbench.spec.engine import EngineSpec, OptimizerSpec
from zbench.spec.peers import PEERS, peer_conflicts

READ_BY_THE_ADAPTER = {"engine", "engine_python", "ds_config", "accumulation_mode", "param_groups"}
"""Keys that say how the engine is built and called, not what its configuration is."""


PYTHON = os.environ.get("DEEPSPEED_PYTHON")


def built(**keys: Any) -> dict[str, Any]:
    return configuration(EngineSpec.model_validate({"engine": "deepspeed", "zero_stage": 3} | keys))


def refused(**keys: Any) -> bool:
    spec = EngineSpec.model_validate({"engine": "deepspeed", "zero_stage": 3} | keys)
    return any("is not installed" not in why for _, why in peer_conflicts(spec))


@pytest.mark.parametrize("key", sorted(PEERS["deepspeed"].reads - READ_BY_THE_ADAPTER - {"optimizer"}))
def test_a_key_that_is_read_changes_the_configuration(key: str) -> None:
    needed = NEEDED.get(key, {})
    assert not refused(**needed, **{key: OTHER[key]})
    assert built(**needed, **{key: OTHER[key]}) != built(**needed)


@pytest.mark.parametrize("key", OptimizerSpec.model_fields)
@pytest.mark.parametrize("where", ["none", "cpu"])
def test_a_key_of_adam_changes_the_configuration_or_is_refused(key: str, where: str) -> None:
    keys = {"offload_optimizer": where, "optimizer": {key: OTHER[f"optimizer.{key}"]}}
    changed = built(**keys)["optimizer"] != built(offload_optimizer=where)["optimizer"]
    assert changed or refused(**keys)


@pytest.mark.parametrize("has_cuda", [False, True])
def test_a_users_own_optimizer_stays_where_its_kernel_can_run(
    has_cuda: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: has_cuda)
    own = {"type": "Adam", "params": {"lr": 0.5}}
    keys: dict[str, Any] = {"optimizer": {"name": "adam", "lr": 0.5}}
    made = built(ds_config={"optimizer": own}, **keys)
    assert (made["optimizer"] == own) == has_cuda
    assert made["zero_allow_untested_optimizer"] is True, "else DeepSpeed refuses torch's Adam"
    without = built(ds_config={"zero_optimization": {"stage": 3}}, **keys)["optimizer"]
    assert without == built(**keys)["optimizer"]


def test_a_users_own_configuration_leaves_the_boundary_to_the_mode() -> None:
    key = "managed_gradient_accumulation"
    config = {"zero_optimization": {"stage": 3}}
    assert built(ds_config=config, accumulation_mode="unmanaged")[key] is False
    assert key not in built(ds_config=config, accumulation_mode="multi_backward")


@pytest.mark.skipif(PYTHON is None, reason="DEEPSPEED_PYTHON names no interpreter that has DeepSpeed")
@pytest.mark.timeout(300)
def test_deepspeed_takes_amsgrad_and_leaves_no_shared_memory(tmp_path: Path) -> None:
    sweep = {
        "workload": {"model": "mlp", "options": {"hidden": 64}, "sequence_length": 32},
        "run": {"world_size": 2, "steps": 3, "repeats": 1},
        "engine": {"engine": "deepspeed", "engine_python": PYTHON, "zero_stage": 1},
        "axes": {"offload_optimizer": ["none", "cpu"], "engine.optimizer.amsgrad": [False, True]},
    }
    (tmp_path / "sweep.json").write_text(json.dumps(sweep))
    before = set(Path("/dev/shm").iterdir())
    command = [sys.executable, "-m", "zbench", "sweep", "sweep.json", "--json", "-q"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    records = json.loads(done.stdout)["trials"]
    assert [record["correctness"]["verdict"] for record in records] == ["equivalent"] * 4
    assert set(Path("/dev/shm").iterdir()) <= before
