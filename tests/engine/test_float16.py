"""float16: the loss scale moves, a step that overflowed is skipped whole and reported, moments see true
gradients.
"""

from typing import Any

import pytest
import torch
import torch.distributed as dist

from tests.engine import models
from tests.engine.lattice import ALL, EVERY_ROW, SIZES, check, row_id, rows_of
from zbench.engine import build_engine
from zbench.engine.protocols import StepInfo
from zbench.spec.engine import EngineSpec
from zbench.testing.ranks import RankPool

MODES: list[dict[str, Any]] = [
    {},
    {"gradient_accumulation_steps": 3},
    {"accumulation_mode": "unmanaged", "backwards": 2},
]


def overflow(group: dist.ProcessGroup, spec: dict[str, Any]) -> tuple[list[StepInfo], set[str]]:
    """Take a good step and one that overflows on rank 1 alone; return both, and what the second changed."""
    model = models.make("mlp")
    engine = build_engine(model, EngineSpec.model_validate({"dtype": "float16", **spec}), group)
    infos = []
    before: dict[str, torch.Tensor] = {}
    for step in range(2):
        before = engine.state_dict()
        for micro in range(2):
            loss = models.loss(model, models.batch("mlp", step, micro, dist.get_rank(group)))
            grows = step == 1 and micro == 0 and dist.get_rank(group) == 1
            engine.backward(loss * 1e30 if grows else loss)
        infos.append(engine.step())
    changed = {key for key, value in engine.state_dict().items() if not torch.equal(value, before[key])}
    with torch.no_grad():  # what the model computes with must be the old weights too
        assert models.loss(model, models.batch("mlp", 0, 0, 0)).isfinite()
    for name, value in engine.full_parameters().items():
        assert torch.equal(value, before[f"param.{name}"])
    engine.close()
    return infos, changed


@rows_of(lambda k: k in (0, 3, 8, 10))
def test_scaled_runs_have_plain_bits_skipped_steps_included(ranks: RankPool, k: int) -> None:
    point = EVERY_ROW[k] | SIZES | MODES[k % 3] | {"dtype": "float16", "loss_scale_window": 2}
    scaled = point | {"initial_loss_scale": 2.0**26, "gradient_clipping": 0.1 * (k % 2)}
    expected = check(ranks, "mlp", 2, scaled, steps=10)
    assert any(expected.skipped)
    assert False in expected.skipped
    expected = check(ranks, "spiky", 2, point | {"initial_loss_scale": 1024.0}, steps=4)
    assert expected.skipped == [False, False, True, False]


@pytest.mark.parametrize("row", ALL, ids=row_id)
def test_an_overflow_on_one_rank_changes_the_loss_scale_alone(ranks: RankPool, row: dict[str, Any]) -> None:
    spec = row | SIZES | {"initial_loss_scale": 256.0, "gradient_accumulation_steps": 2}
    for infos, changed in ranks.run(2, f"{__name__}:overflow", spec):
        assert [info.skipped for info in infos] == [False, True]
        assert [info.loss_scale for info in infos] == [256.0, 256.0]
        assert not infos[1].clipped
        assert infos[1].rolled_back == ("offload_schedule" in row)
        assert changed == {"engine.loss_scale"}
