"""What a step's one collective adds up over all ranks: exact sums and flags."""

import math
from collections.abc import Sequence
from contextlib import nullcontext, suppress

import pytest
import torch
from torch import Tensor

from zbench.engine.adam import NativeAdam
from zbench.engine.adam.exact_sum import exact_zero
from zbench.engine.gradients.norm import Summarizer, Summary
from zbench.engine.transport.agreement import Agreement
from zbench.engine.transport.collective_checks import Terms
from zbench.engine.transport.single import SingleProcessCollectives
from zbench.errors import RanksDisagreeError

SENT = 4096  # bytes


class AddedLater(SingleProcessCollectives):
    """One rank of several, whose words meet those of the others afterwards."""

    def __init__(self, rank: int, world_size: int, shards: int, others: Tensor | None = None) -> None:
        super().__init__()
        self.rank, self.world_size, self.shards = rank, world_size, shards  # type: ignore[misc]
        self.sent: list[Tensor] = []
        self._others = others

    def add_up(self, words: Tensor, tag: object) -> Tensor:
        self.sent.append(words)
        return words if self._others is None else self._others


def summaries(
    gradients: Sequence[Tensor], there: Sequence[Sequence[bool]], shards: int
) -> tuple[list[Summary], int]:
    """Return the summary of each rank, and how many bytes each has sent."""

    def one(rank: int, others: Tensor | None) -> tuple[Summary, Tensor]:
        def square_sums() -> Tensor:
            sums = exact_zero()
            NativeAdam().add_square_sums([gradients[rank % shards]], sums)
            return sums

        comm = AddedLater(rank, len(there), shards, others)
        summarizer = Summarizer(comm, Agreement(0, 1), square_sums, always=True)  # type: ignore[arg-type]
        summary = Summary(None, [])
        with suppress(RanksDisagreeError) if others is None else nullcontext():  # alone it sees its own words
            summary = summarizer.gather(there[rank], Terms(("lr", 1e-3), None))
        return summary, comm.sent[0]

    sent = torch.stack([one(rank, None)[1] for rank in range(len(there))])
    total = sent.sum(dim=0)
    return [one(rank, total)[0] for rank in range(len(there))], sent[0].nbytes


@pytest.mark.parametrize(("ranks", "shards"), [(1, 1), (2, 2), (6, 3)])
def test_every_shard_counts_once_in_one_message(ranks: int, shards: int) -> None:
    gradients = [torch.randn(512) * 10**rank for rank in range(shards)]
    there = [[rank == 0, False, True] for rank in range(ranks)]
    totals, sent = summaries(gradients, there, shards)
    for summary in totals:
        assert summary.active == [True, False, True]
        assert summary.square_sum == pytest.approx(sum(float(g.double().square().sum()) for g in gradients))
    assert len({summary.square_sum for summary in totals}) == 1
    assert sent <= SENT


def test_a_message_is_small_for_any_model() -> None:
    parameters, ranks = 723, 256
    there = [[(k + rank) % 2 == 0 and k % 5 > 0 for k in range(parameters)] for rank in range(ranks)]
    totals, sent = summaries([torch.ones(256)] * ranks, there, ranks)
    assert sent == (13 + 68 + math.ceil(parameters / (63 // ranks.bit_length()))) * 8 <= SENT
    assert totals[0] == Summary(256.0 * ranks, [k % 5 > 0 for k in range(parameters)])
