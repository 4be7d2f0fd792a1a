"""Random backwards, unused parameters, exceptions and freezing: nothing grows, and no bit differs from plain
PyTorch. And the lattice of choices at depth: every three of them together, in every row.
"""

from functools import cache
from typing import Any

import pytest

from tests.engine.covering import Point, covering
from tests.engine.lattice import CHOICES, ROWS, SIZES, SPECULATIVE_ROWS, check, row_id
from tests.engine.ranks import RankPool

ALL = [*ROWS, *SPECULATIVE_ROWS]
WORLDS = [1, 2, 3, 4]
each_row = pytest.mark.parametrize("k", range(len(ALL)), ids=lambda k: row_id(ALL[k]))

ENDURED: dict[str, Any] = {
    "row": range(len(ALL)),
    "world_size": WORLDS,
    "model": ["mlp", "gpt", "odd-together", "checkpointed", "wandering", "outside"],
    "accumulation": [
        {"accumulation_mode": "unmanaged"},
        {"accumulation_mode": "multi_backward"},
        {"gradient_accumulation_steps": 2},
    ],
    "reduce_at": [{}, {"reduce_at": "boundary"}, {"reduce_at": "each_backward"}],
    "clipping": [{}, {"gradient_clipping": 0.5}],
    "dtype": [{}, {"dtype": "bfloat16"}, {"dtype": "float16", "loss_scale_window": 5}],
    "sizes": [SIZES, {}],
}
MIXED = {
    "world_size": WORLDS,
    "model": ["mlp", "gpt", "odd-together", "checkpointed", "wandering", "outside", "mixed"],
    **CHOICES,
    "dtypes": [*CHOICES["dtypes"], {"dtype": "float16", "loss_scale_window": 1}],
}


def endure(ranks: RankPool, point: Point, *, steps: int, rounds: int = 2, seed: int) -> None:
    """Hold what each rank keeps at the end of every round to what it kept at the end of the first."""
    spec = dict(ALL[point["row"]])
    for choice in (value for value in point.values() if isinstance(value, dict)):
        spec |= choice
    arguments = (point["model"], spec, steps, rounds, seed)
    for held in ranks.run(point["world_size"], "tests.engine.endurance:endure", *arguments):
        for later in held[1:]:
            assert later.bytes - held[0].bytes < 512, f"{point}: {held}"
            assert later.files <= held[0].files, f"{point}: {held}"
            assert later.threads <= held[0].threads, f"{point}: {held}"


@pytest.mark.parametrize(
    "k", [k if k in (1, 4, 5, 8, 9, 11) else pytest.param(k, marks=pytest.mark.soak) for k in range(len(ALL))]
)
def test_a_short_run(ranks: RankPool, k: int) -> None:
    point = {name: values[k % len(values)] for name, values in ENDURED.items()}
    endure(ranks, point | {"world_size": 2}, steps=8, seed=k)


@pytest.mark.soak
@pytest.mark.parametrize("k", range(len(covering(ENDURED, 2, seed=1))))
def test_every_two_choices_for_a_hundred_steps(ranks: RankPool, k: int) -> None:
    endure(ranks, covering(ENDURED, 2, seed=1)[k], steps=50, seed=100 + k)


@pytest.mark.soak
@pytest.mark.timeout(3600)
@each_row
def test_a_thousand_steps_of_each_row(ranks: RankPool, k: int) -> None:
    point = {name: values[(k + 1) % len(values)] for name, values in ENDURED.items()}
    endure(ranks, point | {"row": k, "world_size": 1 + k % 2}, steps=200, rounds=5, seed=k)


@cache
def mixed() -> list[Point]:
    return covering(MIXED, 3, seed=1)


@pytest.mark.soak
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("world_size", WORLDS)
@each_row
def test_every_three_choices_of_the_lattice(ranks: RankPool, k: int, world_size: int) -> None:
    """Some 370 points, the same in every row, so that most rows find their reference computed."""
    for point in mixed():
        if point["world_size"] == world_size:
            spec = dict(ALL[k])
            for name in (*CHOICES, "dtypes"):
                spec |= point[name]
            check(ranks, point["model"], world_size, spec)
