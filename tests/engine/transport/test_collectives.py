"""What every kind of collectives promises; those of NCCL by its rules in `tests/engine/nccl`."""

import pytest
import torch

from tests.engine.ranks import RankPool
from tests.engine.transport.conforming import OPERATIONS

DTYPES = (torch.float32, torch.bfloat16, torch.float16)


class CollectivesSuite:
    """Inherited by the test of each implementation."""

    kind: str
    worlds: tuple[int, ...] = (2, 3)
    dtypes = DTYPES

    @pytest.mark.parametrize("operation", OPERATIONS)
    def test_it_does_what_the_protocol_says(self, ranks: RankPool, operation: str) -> None:
        for world in self.worlds:
            case = (self.kind, operation, self.dtypes)
            assert ranks.run(world, "tests.engine.transport.conforming:run", *case) == [[]] * world


class TestSingle(CollectivesSuite):
    kind = "single"
    worlds = (1,)


class TestGloo(CollectivesSuite):
    kind = "gloo"


class TestProcessGroup(CollectivesSuite):
    """Those of a backend that needs no composition, here Gloo's."""

    kind = "process_group"


class TestCrossMemory(CollectivesSuite):
    kind = "cross_memory"


class TestStaged(CollectivesSuite):
    kind = "staged"
    dtypes = DTYPES[:2]


class TestHybridGloo(CollectivesSuite):
    """Two shard groups, of one rank and of two."""

    kind = "hybrid_gloo"
    worlds = (2, 4)
    dtypes = DTYPES[:1]


class TestHybridCrossMemory(CollectivesSuite):
    kind = "hybrid_cross_memory"
    worlds = (2, 4)
    dtypes = DTYPES[:2]


class TestHybridStaged(CollectivesSuite):
    kind = "hybrid_staged"
    worlds = (4,)
    dtypes = DTYPES[:1]


class TestHybridProcessGroup(CollectivesSuite):
    kind = "hybrid_process_group"
    worlds = (2, 4)
    dtypes = DTYPES[:1]
