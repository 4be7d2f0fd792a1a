"""`leaf_modules`: experts that only some ranks use have plain PyTorch's bits; without it, refused."""

from typing import Any

import pytest
from torch import nn

from tests.engine.safety.plainly import build
from tests.engine.safety.routing import WIDTH
from zbench.errors import UsageError
from zbench.testing.ranks import RankPool

MODULE = "tests.engine.safety.routing:"
ROWS: list[dict[str, Any]] = [
    {"leaf_modules": ["one", "two"], "overlap_comm": False},
    {"prefetch_bucket_size": 4000, "param_persistence_threshold": 100, "gradient_clipping": 0.1},
    {"offload_optimizer": "cpu", "offload_param": "cpu", "reduce_bucket_size": 10**6},
]


@pytest.mark.parametrize("row", ROWS, ids=["by-name", "ahead", "offloaded"])
@pytest.mark.parametrize("world", [pytest.param(2, marks=pytest.mark.check), 3])
def test_experts_used_on_some_ranks_only_leave_the_bits_of_plain_pytorch(
    ranks: RankPool, row: dict[str, Any], world: int
) -> None:
    for differ in ranks.run(world, MODULE + "differing_from_plain", "memory", row, world - 1, ""):
        assert differ == []


@pytest.mark.parametrize("how", ["checkpointed", "twice"])
@pytest.mark.parametrize("way", [pytest.param("memory", marks=pytest.mark.check), "sockets"])
def test_leaf_modules_that_are_checkpointed_or_called_again(ranks: RankPool, way: str, how: str) -> None:
    for differ in ranks.run(2, MODULE + "differing_from_plain", way, {}, 2, how):
        assert differ == []


def test_without_the_key_ranks_that_use_other_experts_are_refused(ranks: RankPool) -> None:
    for message in ranks.run(2, MODULE + "without_the_key"):
        assert message.startswith("RanksDisagreeError"), message
        assert "leaf_modules" in message


def test_a_name_of_no_module_changes_nothing_and_is_refused() -> None:
    net = nn.Linear(WIDTH, WIDTH)
    with pytest.raises(UsageError, match=r"leaf_modules.*'Expert'.*Linear"):
        build(net, {"zero_stage": 3}, leaf_modules=["Expert"])
    build(net, {"zero_stage": 3}).close()
