"""`leaf_modules`: experts that only some ranks use have plain PyTorch's bits; without it, refused."""

from typing import Any

import pytest
from torch import nn

from tests.engine.safety.plainly import build
from tests.engine.safety.routing import EXPERTS, WIDTH, Mixture
from zbench.errors import UsageError
from zbench.testing.ranks import RankPool

MODULE = "tests.engine.safety.routing:"
ROWS: list[dict[str, Any]] = [
    {},
    {"leaf_modules": ["one", "two"], "overlap_comm": False},
    {"prefetch_bucket_size": 4000, "param_persistence_threshold": 100, "gradient_clipping": 0.1},
    {"offload_optimizer": "cpu", "offload_param": "cpu", "reduce_bucket_size": 10**6},
]


@pytest.mark.parametrize("row", ROWS, ids=["plain", "by-name", "ahead", "offloaded"])
@pytest.mark.parametrize(("world", "micros"), [(2, 1), (3, 2)])
def test_experts_used_on_some_ranks_only_leave_the_bits_of_plain_pytorch(
    ranks: RankPool, row: dict[str, Any], world: int, micros: int
) -> None:
    for differ in ranks.run(world, MODULE + "differing_from_plain", "memory", row, micros, ""):
        assert differ == []


@pytest.mark.parametrize("how", ["checkpointed", "twice"])
@pytest.mark.parametrize("way", ["memory", "sockets"])
def test_leaf_modules_that_are_checkpointed_or_called_again(ranks: RankPool, way: str, how: str) -> None:
    for differ in ranks.run(2, MODULE + "differing_from_plain", way, {}, 2, how):
        assert differ == []


def test_without_the_key_ranks_that_use_other_experts_are_refused(ranks: RankPool) -> None:
    for message in ranks.run(2, MODULE + "without_the_key"):
        assert message.startswith("RanksDisagreeError"), message
        assert "leaf_modules" in message


def test_a_leaf_module_is_whole_while_it_runs_and_gone_after(ranks: RankPool) -> None:
    most = 4 * sum(p.numel() for p in Mixture().parameters())
    for held, after, end in ranks.run(2, MODULE + "held_bytes"):
        assert most <= held < 1.6 * most + 4 * 256 * 4 * EXPERTS
        assert after == end == 0


def test_a_name_of_no_module_is_refused_before_anything_has_changed() -> None:
    net = nn.Linear(WIDTH, WIDTH)
    with pytest.raises(UsageError, match=r"leaf_modules.*'Expert'.*Linear"):
        build(net, {"zero_stage": 3}, leaf_modules=["Expert"])
    build(net, {"zero_stage": 3}).close()
