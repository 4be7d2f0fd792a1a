"""FSDP2 with every key that it has: each row trains what plain PyTorch trains."""

from collections.abc import Iterable
from typing import Any

import pytest

from tests.engine.covering import by_default, covering
from tests.peers.test_training import GPT
from tests.worker.conftest import RunTrial, trial
from zbench.spec.engine import EngineSpec
from zbench.spec.peers import peer_conflicts

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
