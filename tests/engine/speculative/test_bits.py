"""Speculative, after_backward and no offload leave the same bits, having done what they were to do."""

from functools import cache
from typing import Any

import pytest

from tests.engine.covering import Point, covering
from tests.engine.ranks import RankPool
from tests.engine.speculative.cases import MODES, Case

AXES: dict[str, Any] = {
    "world": [1, 2],
    "stage": [1, 2, 3],
    "groups": [1, 2, 5],
    "clip": ["never", "sometimes", "always", "off"],
    "mode": list(MODES),
    "model": ["mlp", "gpt", "odd"],
    "dtype": ["float32", "bfloat16", "float16"],
}
KNOBS: dict[str, Any] = {
    "bucket": [1, 1500, 10**8],
    "each": [False, True],
    "offload_param": [False, True],
    "moments": ["float32", "bfloat16"],
    "ratio": [1.0, 0.7, 0.25, 0.0],
    "rollback": ["double_buffer", "journal"],
}


def run(ranks: RankPool, world: int, **point: Any) -> None:
    if point["stage"] != 3:
        point["offload_param"] = False
    point.setdefault("steps", 14 if point["dtype"] == "float16" else 6)  # the first ones overflow
    case = Case(**point)
    counts = ranks.run(world, "tests.engine.speculative.cases:compare", case)[0]
    taken = case.steps - counts["skipped"]
    clipped = {"never": {0}, "off": {0}, "always": {taken}}.get(case.clip, set(range(1, taken)))
    assert counts["clipped"] in clipped
    assert (counts["skipped"] > 0) == (case.dtype == "float16")
    if case.mode == "unmanaged" and (case.each or case.stage > 1) and world > 1:
        return  # what is reduced at each backward is final only at step(), so nothing was ahead
    if case.clip in ("never", "off") and case.dtype != "float16":
        assert counts["rolled_back"] == 0
    elif case.ratio == 1.0 and case.rollback == "double_buffer":
        assert counts["rolled_back"] == counts["clipped"] + counts["skipped"]
    else:  # there may have been nothing ahead
        assert counts["rolled_back"] <= counts["clipped"] + counts["skipped"]


@pytest.mark.parametrize("point", covering(AXES | KNOBS, 2, seed=1), ids=str)
def test_every_pair_of_choices(ranks: RankPool, point: dict[str, Any]) -> None:
    run(ranks, **point)


@cache
def deep() -> list[Point]:
    return covering(AXES | KNOBS, 4, seed=2)


@pytest.mark.soak
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("stage", AXES["stage"])
@pytest.mark.parametrize("world", AXES["world"])
def test_every_four_choices(ranks: RankPool, world: int, stage: int, mode: str) -> None:
    for point in deep():
        if (point["world"], point["stage"], point["mode"]) == (world, stage, mode):
            run(ranks, **point, steps=50)
