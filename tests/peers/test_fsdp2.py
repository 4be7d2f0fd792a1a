"""FSDP2 with every key that it has: each row trains what plain PyTorch trains."""

from collections.abc import Iterable
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn

from tests.engine.covering import by_default, covering
from tests.engine.steps.agreeing import heard
from tests.peers.test_training import GPT
from tests.worker.conftest import RunTrial, trial
from zbench.peers.fsdp2 import build_engine
from zbench.spec.engine import EngineSpec
from zbench.spec.peers import peer_conflicts
from zbench.testing.ranks import RankPool

AXES: dict[str, list[dict[str, Any]]] = {
    "stage": [{"zero_stage": 2}, {"zero_stage": 3}],
    "dtype": [
        {},
        {"dtype": "bfloat16"},
        {"dtype": "bfloat16", "grad_accum_dtype": "bfloat16"},
        {"communication_dtype": "bfloat16"},
    ],
    "offload": [{}, {"offload_optimizer": "cpu"}, {"offload_param": "cpu", "offload_optimizer": "cpu"}],
    "groups": [{}, {"shard_group_size": 1}],
    "accumulation": [{}, {"gradient_accumulation_steps": 3}],
    "clipping": [{}, {"gradient_clipping": 0.5}],
}


def row_of(choices: Iterable[dict[str, Any]]) -> dict[str, Any] | None:
    """Return the configuration of these choices; None if the stage keeps no parameters to offload."""
    row = {key: value for choice in choices for key, value in choice.items()}
    return None if row["zero_stage"] == 2 and "offload_param" in row else row


ROWS = [row for point in covering(AXES, 2, seed=1) if (row := row_of(point.values()))]


@pytest.mark.parametrize("k", by_default(lambda k: k == 0, [(k,) for k in range(len(ROWS))]))
def test_a_row_trains_what_plain_pytorch_trains(run_trial: RunTrial, k: int) -> None:
    record = run_trial(trial({"engine": "fsdp2", **ROWS[k]}, workload=GPT, run={"steps": 2}))
    assert record.error is None, record.error
    assert record.correctness.verdict in ("identical", "equivalent"), record.correctness
    offloads = "offload_optimizer" in ROWS[k]
    assert ("host_moments" in record.memory.by_category) == offloads
    assert ("moments" in record.memory.by_category) != offloads


def test_float16_is_refused_with_the_remedy() -> None:
    spec = EngineSpec(engine="fsdp2", zero_stage=3, dtype="float16")
    ((key, reason),) = peer_conflicts(spec)
    assert key == "engine.dtype"
    assert "bfloat16" in reason


class Scaled(nn.Module):
    """A layer and a scalar."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.scale = nn.Linear(4, 4), nn.Parameter(torch.tensor(1.0))


def of_a_scalar(group: dist.ProcessGroup, stage: int) -> str:
    """Return what is heard when FSDP2 is built on a model with a scalar, and whether it is as before."""
    model = Scaled()
    message = heard(lambda: build_engine(model, EngineSpec(engine="fsdp2", zero_stage=stage), group))
    return message if type(model) is Scaled else "changed"


@pytest.mark.parametrize("stage", [2, 3])
def test_a_scalar_parameter_is_refused_by_name(ranks: RankPool, stage: int) -> None:
    for text in ranks.run(2, f"{__name__}:of_a_scalar", stage):
        assert text.startswith("UnsupportedError"), text
        assert "'scale'" in text
        assert "shape [1]" in text
