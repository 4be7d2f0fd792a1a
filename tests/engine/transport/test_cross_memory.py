"""Ranks that read one another's memory: same bits as sockets, and sane when something goes wrong."""

from itertools import product
from unittest import mock

import pytest
import torch

from tests.engine.covering import by_default
from tests.engine.lattice import ROWS, check
from zbench.engine.memory.kinds import DeviceMemory
from zbench.engine.transport.peers import publish_probe
from zbench.testing.ranks import RankPool

CASES = "tests.engine.transport.cases:"
MODELS = ("mlp", "odd-together")


def test_the_probe_lies_in_the_memory_that_will_be_read() -> None:
    tensor = torch.zeros(16, dtype=torch.uint8)
    memory = mock.Mock(spec=DeviceMemory, zeros=lambda numel, dtype: tensor[:numel])
    probe, _ = publish_probe(memory)
    assert probe.address == tensor.data_ptr()
    assert probe.readable()


@pytest.mark.parametrize("world", [2, 3])
def test_memory_may_be_overwritten_once_a_work_has_been_waited_for(ranks: RankPool, world: int) -> None:
    assert all(ranks.run(world, CASES + "many_in_flight", 50_000, 6))


@pytest.mark.parametrize(
    ("k", "model"),
    by_default(lambda k, model: model == MODELS[k % 2], product(range(len(ROWS)), MODELS)),
)
def test_training_by_sockets_leaves_the_bits_of_plain_pytorch(ranks: RankPool, k: int, model: str) -> None:
    """And so those of training by reading, which the lattice holds to the same in every row."""
    spec = ROWS[k] | {"gradient_clipping": 0.1, "reduce_bucket_size": 1500, "gradient_accumulation_steps": 2}
    spec |= {"dtype": {"mlp": "float32", "odd-together": "bfloat16"}[model]}
    check(ranks, model, 3, spec, by=CASES + "trajectory_by_sockets")


def test_reading_is_chosen_only_if_every_rank_can(ranks: RankPool) -> None:
    assert ranks.run(3, CASES + "chosen", None) == ["CrossMemoryCollectives"] * 3
    for refused in range(3):
        assert ranks.run(3, CASES + "chosen", refused) == ["GlooCollectives"] * 3


@pytest.mark.parametrize("closed", [True, False])
def test_no_thread_outlives_its_collectives(ranks: RankPool, closed: bool) -> None:
    assert ranks.run(2, CASES + "threads_left", closed=closed) == [[], []]


@pytest.mark.parametrize("failing", [0, 2])
def test_a_rank_that_fails_to_read_tells_the_others_and_the_next_call_works(
    ranks: RankPool, failing: int
) -> None:
    heard = [text for text, _ in ranks.run(3, CASES + "one_fails_to_read", failing)]
    assert heard.pop(failing) == "refused in the middle"
    assert heard == [f"rank {failing} could not read the memory of another rank"] * 2
    assert [value for _, value in ranks.run(3, CASES + "one_fails_to_read", failing)] == [3.0] * 3


def test_an_interrupt_is_raised_when_the_memory_is_no_longer_used(ranks: RankPool) -> None:
    assert ranks.run(2, CASES + "interrupted") == [("interrupt", True), ("nothing", True)]


@pytest.mark.parametrize("in_place", [False, True])
def test_a_reduction_needs_little_whatever_its_length_and_keeps_nothing(
    ranks: RankPool, in_place: bool
) -> None:
    for extra, remaining_bytes in ranks.run(3, CASES + "extra_bytes", 3 << 20, in_place=in_place):
        # of 12 MiB from each of two neighbours; one part lands in an `out` apart
        assert 0 < extra <= (1 + in_place) * (1 << 18) + 4096
        assert remaining_bytes == 0
