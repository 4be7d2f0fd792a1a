"""float16: the loss scale moves, a step that overflowed is skipped whole and reported, moments see true
gradients.
"""

from typing import Any

import pytest

from tests.engine.lattice import EVERY_ROW, SIZES, check, row_id
from zbench.testing.ranks import RankPool

MODES: list[dict[str, Any]] = [
    {},
    {"gradient_accumulation_steps": 3},
    {"accumulation_mode": "unmanaged", "backwards": 2},
]

each_row = pytest.mark.parametrize("row", EVERY_ROW, ids=row_id)


@pytest.mark.parametrize("k", range(len(EVERY_ROW)), ids=lambda k: row_id(EVERY_ROW[k]))
def test_scaled_runs_have_the_bits_of_plain_ones_skipped_steps_and_all(ranks: RankPool, k: int) -> None:
    point = EVERY_ROW[k] | SIZES | MODES[k % 3] | {"dtype": "float16", "loss_scale_window": 2}
    scaled = point | {"initial_loss_scale": 2.0**26, "gradient_clipping": 0.1 * (k % 2)}
    expected = check(ranks, "mlp", 2, scaled, steps=10)
    assert any(expected.skipped)
    assert False in expected.skipped
    expected = check(ranks, "spiky", 2, point | {"initial_loss_scale": 1024.0}, steps=4)
    assert expected.skipped == [False, False, True, False]


@each_row
def test_an_overflow_on_one_rank_changes_nothing_but_the_loss_scale_on_all(
    ranks: RankPool, row: dict[str, Any]
) -> None:
    spec = row | SIZES | {"initial_loss_scale": 256.0, "gradient_accumulation_steps": 2}
    for infos, changed in ranks.run(2, "tests.engine.overflows:overflow", spec):
        assert [info.skipped for info in infos] == [False, True]
        assert [info.loss_scale for info in infos] == [256.0, 256.0]
        assert not infos[1].clipped
        assert changed == {"engine.loss_scale"}
