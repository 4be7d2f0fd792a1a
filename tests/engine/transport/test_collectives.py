"""What every kind of collectives promises; those of NCCL by its rules in `tests/engine/nccl`."""

from zbench.testing.collectives import DTYPES, CollectivesSuite

KINDS = "tests.engine.transport.cases:"


class TestSingle(CollectivesSuite):
    make = KINDS + "single"
    worlds = (1,)


class TestGloo(CollectivesSuite):
    make = KINDS + "gloo"


class TestProcessGroup(CollectivesSuite):
    """Those of a backend that needs no composition, here Gloo's."""

    make = KINDS + "process_group"


class TestCrossMemory(CollectivesSuite):
    make = KINDS + "cross_memory"


class TestStaged(CollectivesSuite):
    make = KINDS + "staged"
    dtypes = DTYPES[:2]


class TestHybridCrossMemory(CollectivesSuite):
    """Two shard groups, of one rank and of two."""

    make = KINDS + "hybrid_cross_memory"
    worlds = (2, 4)
    dtypes = DTYPES[:2]


class TestHybridProcessGroup(CollectivesSuite):
    make = KINDS + "hybrid_process_group"
    worlds = (2, 4)
    dtypes = DTYPES[:1]
