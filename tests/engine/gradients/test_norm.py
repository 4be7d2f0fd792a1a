"""What a step's one collective adds up over all ranks: exact sums, flags, and what must be alike."""

import math
import random
from collections.abc import Sequence

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from zbench.engine.adam import NativeAdam
from zbench.engine.adam.exact_sum import exact_zero
from zbench.engine.gradients.norm import Summarizer, Summary, packed, unpacked
from zbench.engine.transport.agreement import Agreement
from zbench.engine.transport.collective_checks import Terms
from zbench.engine.transport.single import SingleProcessCollectives
from zbench.errors import RanksDisagreeError, UsageError

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
    gradients: Sequence[Tensor], there: Sequence[Sequence[bool]], terms: Sequence[Terms], shards: int
) -> tuple[list[Summary], int]:
    """Return the summary of each rank, and how many bytes each has sent."""

    def one(rank: int, others: Tensor | None) -> tuple[Summary, Tensor]:
        def square_sums() -> Tensor:
            sums = exact_zero()
            NativeAdam().add_square_sums([gradients[rank % shards]], sums)
            return sums

        comm = AddedLater(rank, len(there), shards, others)
        summarizer = Summarizer(comm, Agreement(0, 1), square_sums, always=True)  # type: ignore[arg-type]
        try:
            return summarizer.gather(there[rank], terms[rank]), comm.sent[0]
        except (RanksDisagreeError, UsageError):
            if others is not None:
                raise
            return Summary(None, []), comm.sent[0]  # alone it sees its own words only

    sent = torch.stack([one(rank, None)[1] for rank in range(len(there))])
    total = sent.sum(dim=0)
    return [one(rank, total)[0] for rank in range(len(there))], sent[0].nbytes


@pytest.mark.parametrize(("ranks", "shards"), [(1, 1), (2, 2), (6, 3)])
def test_every_shard_counts_once_in_one_message(ranks: int, shards: int) -> None:
    gradients = [torch.randn(512) * 10**rank for rank in range(shards)]
    there = [[rank == 0, False, True] for rank in range(ranks)]
    terms = [Terms(("lr", 1e-3), None)] * ranks
    totals, sent = summaries(gradients, there, terms, shards)
    for summary in totals:
        assert summary.active == [True, False, True]
        assert summary.square_sum == pytest.approx(sum(float(g.double().square().sum()) for g in gradients))
    assert len({summary.square_sum for summary in totals}) == 1
    assert sent <= SENT


def test_a_message_is_small_for_any_model() -> None:
    parameters, ranks = 723, 256
    there = [[True] * parameters] * ranks
    totals, sent = summaries([torch.ones(256)] * ranks, there, [Terms((), None)] * ranks, ranks)
    assert sent == (13 + 68 + math.ceil(parameters / (63 // ranks.bit_length()))) * 8 <= SENT
    assert totals[0] == Summary(256.0 * ranks, [True] * parameters)


def test_other_hyperparameters_and_a_refusal_are_seen_on_every_rank() -> None:
    there = [[True]] * 3
    same = Terms(("lr", 1e-3), None)
    for other, error in (
        (Terms(("lr", 2e-3), None), RanksDisagreeError),
        (Terms(same.hyperparameters, "why"), UsageError),
    ):
        for place in range(3):
            terms = [other if rank == place else same for rank in range(3)]
            with pytest.raises(error):
                summaries([torch.ones(256)] * 3, there, terms, 3)


@settings(max_examples=30)
@given(st.integers(1, 300), st.integers(0, 200), st.integers(0, 2**32))
def test_flags_of_all_ranks_are_counted(world_size: int, count: int, seed: int) -> None:
    chance = random.Random(seed)  # hypothesis' own numbers took nearly all the time
    flags = [[chance.random() < 0.5 for _ in range(count)] for _ in range(world_size)]
    words = [sum(column) for column in zip(*(packed(row, world_size) for row in flags), strict=True)]
    assert all(0 <= word < 2**63 for word in words)
    assert unpacked(words, count, world_size) == [sum(column) for column in zip(*flags, strict=True)]
