"""Training by NCCL's rules leaves the bits of plain PyTorch, and breaks none of them."""

from collections.abc import Iterator, Sequence
from typing import Any

import pytest
import torch
import torch.distributed as dist

from tests.engine import lattice, models
from tests.engine.cases import train
from tests.engine.far_memory.cases import ROWS, Case, drawn
from tests.engine.nccl.group import FAULTS, StrictGroup, beside_a_host, built, strict
from tests.engine.plain import Trajectory
from zbench.testing import collectives as suite
from zbench.testing.ranks import RankPool


def run(group: dist.ProcessGroup, cases: Sequence[Case]) -> list[tuple[Trajectory, list[str]]]:
    """Return each case's trajectory, and the rules that it broke."""
    results = []
    with strict(group) as mine:
        for case in cases:
            with beside_a_host(case.seed * 2 + mine.rank()) as (instruments, faults):
                engine = built(models.make(case.model), case.spec, mine, instruments)
                how = {key: getattr(case, key) for key in ("steps", "backwards", "change", "disturb")}
                trajectory = train(engine, case.model, mine.rank(), **how)
            results.append((trajectory, [*faults, *FAULTS]))
            FAULTS.clear()
    return results


def conforming(group: dist.ProcessGroup, kind: str, operation: str) -> list[Any]:
    """Return where one operation of the conformance suite does not what the protocol says, and the rules that
    it broke.
    """
    with strict(group) as mine:
        wrong = suite.run(
            mine, f"tests.engine.transport.cases:{kind}", operation, (torch.float32, torch.bfloat16)
        )
        return [*wrong, *FAULTS]


def broken_rules(group: dist.ProcessGroup) -> list[str]:
    """Break rules, and return what shows of each."""
    with strict(group) as mine:
        StrictGroup.sealed = True
        part = torch.ones(4)
        out = torch.zeros(4 * mine.size())
        work: Any = dist.all_gather_into_tensor(out, part, group=mine, async_op=True)
        work.done.wait()
        shown = ["an unwaited result is NaN"] * bool(out.isnan().all())
        work.wait()
        assert bool((out == 1).all())
        dist.all_reduce(torch.from_numpy(torch.ones(4).numpy()), group=mine)
        try:
            dist.all_gather_object([None] * mine.size(), 1, group=mine)
        except TypeError as error:
            shown.append(str(error))
        return shown + FAULTS


EAGER = [row for row in ROWS if "compile" not in row]
WORLDS = (2, 3, pytest.param(4, marks=pytest.mark.soak), pytest.param(8, marks=pytest.mark.soak))


@pytest.fixture(scope="module", params=WORLDS)
def world(request: pytest.FixtureRequest) -> Iterator[RankPool]:
    """Ranks that are a whole world, so that all make the same groups."""
    ranks = RankPool(request.param)
    yield ranks
    ranks.close()


def check(ranks: RankPool, cases: Sequence[Case], most: float | None = None) -> None:
    """most: the mean distance that a parameter may have; None: all bits are those of plain PyTorch."""
    for of_rank in ranks.run(ranks.size, f"{__name__}:run", cases):
        for case, (trajectory, faults) in zip(cases, of_rank, strict=True):
            assert not faults, f"{faults[:3]} at {case}"
            options = repr(lattice.reference_options(case.spec))
            how = (options, case.change, case.steps)
            expected = lattice.reference(case.model, ranks.size, case.backwards, *how)
            if most is None:
                lattice.compare(case.spec, trajectory, expected, f"{case}")
                continue
            for name, value in expected.parameters.items():
                distance = float((trajectory.parameters[name] - value).abs().mean())
                assert distance <= most, f"{name}: {distance} at {case}"


def test_every_row_keeps_its_bits_and_the_rules(world: RankPool) -> None:
    rows = EAGER[world.size % 2 :: 2]
    check(world, [Case(row, seed) for seed, row in enumerate(rows)])


def test_shard_groups_keep_their_bits_and_the_rules(world: RankPool) -> None:
    sizes = [size for size in (1, 2) if world.size % size == 0]
    rows: list[dict[str, Any]] = [{"zero_stage": 3, "shard_group_size": size} for size in sizes]
    check(world, [Case(row | {"param_persistence_threshold": 0}, 0) for row in rows])


BACKEND: list[dict[str, Any]] = [
    *({"zero_stage": stage, "reduction": "backend"} for stage in (0, 1, 2, 3)),
    {"zero_stage": 2, "reduction": "backend", "offload_optimizer": "cpu", "gradient_accumulation_steps": 2},
    {"zero_stage": 3, "reduction": "backend", "shard_group_size": 1, "overlap_comm": False},
]
A_ROUNDING = 1e-7
"""Mean distance of parameters; a gradient that is lost moves them by a thousand times as much."""


def test_the_backends_own_sums_break_no_rule_and_lose_nothing(world: RankPool) -> None:
    """They are added in another order, which of two ranks' is the same one."""
    rows = BACKEND[world.size % 2 :: 2]
    cases = [Case(row, 0, backwards=row.get("gradient_accumulation_steps", 1)) for row in rows]
    check(world, cases, most=0.0 if world.size == 2 else A_ROUNDING)


@pytest.mark.parametrize("operation", suite.OPERATIONS)
def test_collectives_do_what_the_protocol_says_by_these_rules(world: RankPool, operation: str) -> None:
    for kind in ("process_group", *(["hybrid_process_group"] * (world.size % 2 == 0))):
        assert world.run(world.size, f"{__name__}:conforming", kind, operation) == [[]] * world.size


DISTURBED = ("backward", "interrupt", "evaluate", "read", "write", "discard,backward")


def test_failures_beside_a_step_leave_no_trace(world: RankPool) -> None:
    spec = EAGER[6] | {"gradient_accumulation_steps": 2}
    chosen = DISTURBED[world.size % 3 :: 3]
    check(world, [Case(spec, 0, backwards=2, disturb=disturb) for disturb in chosen])


@pytest.mark.soak
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("begin", range(0, 200, 20))
def test_drawn_cases(world: RankPool, begin: int) -> None:
    for seed in range(begin, begin + 20):
        if "compile" not in (case := drawn(seed)).spec:
            check(world, [case])


def test_the_group_itself_shows_what_breaks_a_rule(world: RankPool) -> None:
    for faults in world.run(world.size, f"{__name__}:broken_rules"):
        assert any("connections are made after" in text for text in faults), faults
        assert any("a tensor in host memory" in text for text in faults), faults
        assert "an unwaited result is NaN" in faults
        assert "NCCL sends no objects" in faults
