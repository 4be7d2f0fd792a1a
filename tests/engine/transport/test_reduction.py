"""Who adds gradients: the backend, near to the sum, or the engine, in one order."""

import pytest
import torch

from tests.engine.far_memory.streams import Stream, Values, modelled
from zbench.engine.transport.works import Done, OnStream
from zbench.testing.ranks import RankPool

CASES = "tests.engine.transport.reducing:"


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize(("world", "size"), [(2, 2), (3, 3), (4, 2), (4, 1)])
def test_a_backend_adds_what_all_ranks_sent(
    ranks: RankPool, world: int, size: int, dtype: torch.dtype
) -> None:
    for errors in ranks.run(world, CASES + "far_from_the_sum", size, dtype):
        assert max(errors) < 2 * world


def test_only_shards_in_the_dtype_that_is_sent_leave_a_group(ranks: RankPool) -> None:
    for calls in ranks.run(4, CASES + "bytes_between_groups", torch.bfloat16):
        assert calls == [("reduce_scatter_tensor", 64, torch.bfloat16), ("all_reduce", 64, torch.bfloat16)]


def test_gloo_is_no_backend_that_adds(ranks: RankPool) -> None:
    for message in ranks.run(2, CASES + "refused", "backend"):
        assert "reduction: backend: expected a process group of NCCL, got gloo" in message
        assert "set reduction: auto or rank_order" in message
    for reduction in ("auto", "rank_order"):
        assert ranks.run(2, CASES + "refused", reduction) == ["nothing"] * 2


def test_what_follows_a_collective_is_read_behind_it_and_computing_does_not_wait() -> None:
    with modelled() as (device, _):
        side, backend = Stream(), Stream()
        received, sums, read, other = (Values(device) for _ in range(4))

        class Received(Done):
            def wait(self) -> None:
                device.current_stream().wait_stream(backend)

        with device.stream(backend):
            received.write(3.0)
        work = OnStream(side, Received(), lambda: sums.copy_(received))  # type: ignore[arg-type]
        other.write(5.0)
        device.main.run(len(device.main.operations))
        assert other.value == 5.0
        assert not work.is_completed(), "what is computed would wait for the reduction"
        work.wait()
        read.copy_(sums)
        device.main.run(len(device.main.operations))
        assert read.value == 3.0
