"""Faults of an implementation of a training: those that a lot draws, and a list of 124 kinds.

The list was made before the limits that it tests, from what engines do to parts of tensors, ranks, steps,
moments and copies. Each kind is larger than 1 % of a parameter's gradient or update, unless it is `small`.
"""

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch

from tests.verify.changes import (
    FIRST_HALF,
    KEYS,
    QUERIES,
    SECOND_HALF,
    VALUES,
    Change,
    all_of,
    as_float8,
    as_integer,
    buffers,
    columns,
    decayed,
    delayed,
    each,
    elements,
    in_bfloat16,
    in_e4m3,
    kept_share,
    l2_decay,
    longer,
    masters,
    moments,
    moments_swapped,
    mostly_new,
    no_weights,
    noisy,
    of_rank_1,
    old_weights,
    published,
    row_means,
    rows,
    scaled,
    swapped,
    unclipped,
    with_old,
    within_two,
)  # fmt: skip
from tests.verify.wrong import Wrong, clipped, decays, forgets, late_coefficient, moves, stale, times

KINDS = ("lost", "twice", "longer", "gradients", "one gradient", "one step's gradients", "clip")


@dataclass(frozen=True)
class Fault:
    """Of these steps, [first, last], and of the parameters of a pattern; size: a share of the term."""

    kind: str
    first: int
    last: int
    pattern: str
    size: float

    @classmethod
    def drawn(cls, kind: str, lot: random.Random, steps: int, sizes: dict[str, int]) -> "Fault":
        """Draw a fault of 1 % to 50 %: a step, parameters and a share."""
        first = lot.randrange(1, steps)
        last = (
            steps
            if kind in ("gradients", "one gradient", "clip")
            else first + 4
            if kind == "longer"
            else first
        )
        large = [name for name, size in sizes.items() if size >= 256]
        pattern = lot.choice(large) if kind == "one gradient" else "*"
        return cls(kind, first, last, pattern, lot.choice([-1, 1]) * lot.uniform(0.01, 0.5))

    @property
    def wrong(self) -> Wrong:
        """Return what it does to a step."""
        if self.kind in ("lost", "twice", "longer"):
            return Wrong(after=moves({"lost": 0.0, "twice": 2.0}.get(self.kind, 1 + self.size), self.pattern))
        return Wrong(
            gradients=late_coefficient if self.kind == "clip" else times(1 + self.size, self.pattern)
        )


@dataclass(frozen=True)
class Listed:
    """A listed kind of fault. last: the last step, from 0. small: below 1 % of every term, or of what
    rounding to bfloat16 does to it.
    """

    name: str
    first: int
    last: int
    wrong: Wrong
    small: bool = False


GPT: dict[str, object] = {
    "model": "gpt",
    "options": {"layers": 2, "width": 64, "heads": 4},
    "sequence_length": 32,
}
CNN: dict[str, object] = {"model": "tests.zoo.convolution:BatchNormCnn"}
STEPS = 20
LATE_STEPS = 60
ENGINE: Mapping[str, object] = {
    "gradient_accumulation_steps": 2,
    "gradient_clipping": 0.5,
    "optimizer": {"lr": 1e-3, "weight_decay": 0.1},
}

EARLY, LATE, MIDDLE, ONCE = (1, 99), (11, 99), (6, 8), (5, 5)  # first and last step, from 0
QKV, OUT = "blocks.0.qkv.weight", "blocks.0.attention_out.weight"
MLP_IN, MLP_OUT = "blocks.0.mlp_in.weight", "blocks.0.mlp_out.weight"

_GRADIENTS: Sequence[tuple[str, tuple[int, int], Change]] = [
    ("queries doubled", EARLY, scaled(2, QKV, QUERIES)),
    ("queries lost late", LATE, scaled(0, QKV, QUERIES)),
    ("keys trained uphill", LATE, scaled(-1, QKV, KEYS)),
    ("values a third too large", EARLY, scaled(1.33, QKV, VALUES)),
    ("one head's queries lost", EARLY, scaled(0, QKV, rows(0, 1 / 12))),
    ("one head uphill", EARLY, all_of(*(scaled(-1, QKV, rows(n / 12, (n + 1) / 12)) for n in (1, 5, 9)))),
    ("a quarter of a matrix uphill", EARLY, scaled(-1, MLP_IN, rows(0, 0.25))),
    ("half of a matrix lost for three steps", MIDDLE, scaled(0, MLP_IN, FIRST_HALF)),
    ("a fourth shard lost", (7, 99), scaled(0, MLP_IN, rows(0.75, 1))),
    ("a tenth of the head's columns lost", EARLY, scaled(0, "head.weight", columns(0, 0.1))),
    ("the vocabulary's end lost", EARLY, scaled(0, "tokens.weight", rows(0.95, 1))),
    ("the last row of each matrix lost", EARLY, scaled(0, "matrices", rows(0.999, 1))),
    ("half of each matrix 10 % too large", EARLY, scaled(1.1, "matrices", FIRST_HALF)),
    ("every second row doubled", EARLY, scaled(2, MLP_OUT, rows(0, 1, 2))),
    ("the last twentieth of each tensor lost", EARLY, scaled(0, "*", elements(0.95, 1))),
    ("an eighth of the columns lost", LATE, scaled(0, MLP_OUT, columns(0.5, 0.625))),
    ("the queries' bias lost", EARLY, scaled(0, "blocks.1.qkv.bias", QUERIES)),
    ("half of the norms' weights uphill", EARLY, scaled(-1, "*norm.weight", FIRST_HALF)),
    ("an eighth of the vocabulary doubled", EARLY, scaled(2, "tokens.weight", rows(0, 0.125))),
    ("the first sixteenth of each matrix lost", LATE, scaled(0, "matrices", elements(0, 0.0625))),
    ("the second rank's shards lost", LATE, scaled(0, "*", elements(0.5, 1))),
    ("the second rank's shards 5 % too small", LATE, scaled(0.95, "*", elements(0.5, 1))),
    ("half of the head 20 % too large", MIDDLE, scaled(1.2, "head.weight", SECOND_HALF)),
    ("a matrix 30 % too large once", ONCE, scaled(1.3, "blocks.1.qkv.weight")),
    ("biases lost late", LATE, scaled(0, "*.bias")),
    ("late positions lost", EARLY, scaled(0, "positions.weight", SECOND_HALF)),
    ("the last norm 50 % too large", LATE, scaled(1.5, "norm.weight")),
    ("half of a bias uphill", LATE, scaled(-1, "blocks.1.mlp_in.bias", FIRST_HALF)),
    (
        "the embedding and the head doubled",
        EARLY,
        all_of(scaled(2, "tokens.weight"), scaled(2, "head.weight")),
    ),
    ("a block lost for three steps", MIDDLE, scaled(0, "blocks.1.*")),
    ("a block 10 % too small", LATE, scaled(0.9, "blocks.0.*")),
    ("one head's output uphill", LATE, scaled(-1, OUT, columns(0.25, 0.5))),
    (
        "1 % of the elements stale",
        EARLY,
        with_old(lambda now, old: torch.where(torch.rand_like(now) < 0.01, old, now)),
    ),
    ("15 % noise", EARLY, each(noisy(0.15))),
    ("gradients in e4m3", EARLY, each(as_float8(torch.float8_e4m3fn))),
    ("gradients in e5m2", EARLY, each(as_float8(torch.float8_e5m2))),
    ("gradients in 8-bit integers", EARLY, each(as_integer(127))),
    ("gradients in 4-bit integers", EARLY, each(as_integer(7))),
    ("signs with one size", LATE, each(lambda g: g.sign() * g.abs().mean())),
    ("the largest tenth alone", LATE, each(kept_share(0.1), "matrices")),
    ("5 % of the elements dropped", EARLY, each(lambda g: g * (torch.rand_like(g) > 0.05))),
    ("elements clipped at twice their mean", EARLY, each(within_two)),
    ("a gradient transposed", LATE, each(lambda g: g.T, OUT)),
    ("rows shifted by one", LATE, each(lambda g: g.roll(1, 0), MLP_IN)),
    ("gradients of two blocks exchanged", LATE, swapped(MLP_IN, "blocks.1.mlp_in.weight")),
    ("queries and keys exchanged", LATE, each(lambda g: torch.cat([g[64:128], g[:64], g[128:]]), QKV)),
    ("a bias backwards", LATE, each(lambda g: g.flip(0), "blocks.0.mlp_in.bias")),
    ("small elements flushed", EARLY, each(lambda g: g * (g.abs() > 0.3 * g.square().mean().sqrt()))),
    ("gradients without their mean", EARLY, each(lambda g: g - g.mean(dim=-1, keepdim=True), "matrices")),
    ("gradients of one length", LATE, each(lambda g: g / g.norm().clamp(min=1e-30) * 0.1)),
    ("a matrix in 4-bit integers for three steps", MIDDLE, each(as_integer(7), MLP_IN)),
    ("a quarter of a matrix with 50 % noise", EARLY, each(noisy(0.5), MLP_OUT, rows(0, 0.25))),
    ("a bias without signs", LATE, each(lambda g: g.abs(), "blocks.0.mlp_out.bias")),
    ("the head's gradient of the step before", LATE, stale),
    ("gradients of the step before once", ONCE, with_old(lambda now, old: old)),
    ("half of a matrix stale", EARLY, with_old(lambda now, old: old, MLP_IN, FIRST_HALF)),
    ("a gradient that is not set to zero", EARLY, with_old(lambda now, old: now + old, MLP_OUT)),
    ("gradients mixed with the last ones", LATE, with_old(lambda now, old: (now + old) / 2)),
    ("the embedding stale", EARLY, with_old(lambda now, old: old, "tokens.weight")),
    ("not clipped", LATE, unclipped),
    ("clipped to 90 % of the limit", EARLY, scaled(0.9)),
    ("clipped without the embedding's norm", EARLY, all_of(unclipped, clipped("tokens.weight"))),
    ("clipped each by its own norm", EARLY, all_of(unclipped, clipped(each=True))),
    ("clipped by the factor of the step before", LATE, late_coefficient),
    ("decay added to the gradients", EARLY, l2_decay),
]
_UPDATES: Sequence[tuple[str, tuple[int, int], Change]] = [
    ("half of a matrix not updated", LATE, longer(0, MLP_IN, FIRST_HALF)),
    ("a quarter of the rows updated 10 % too far", LATE, longer(1.1, QKV, rows(0.25, 0.5))),
    ("a quarter updated twice", MIDDLE, longer(2, QKV, rows(0.75, 1))),
    ("biases not updated", LATE, longer(0, "*.bias")),
    ("the vocabulary's end not updated", EARLY, longer(0, "tokens.weight", rows(0.95, 1))),
    ("a block with 10 % more lr", EARLY, longer(1.1, "blocks.1.*")),
    ("updates a fifth too short", LATE, longer(0.8)),
    ("a tenth of the head's columns not updated", EARLY, longer(0, "head.weight", columns(0, 0.1))),
    ("half of a matrix updated a step late", EARLY, delayed(MLP_OUT, FIRST_HALF)),
    ("an update lost", ONCE, longer(0)),
    ("an update done twice", ONCE, longer(2)),
    ("a bias moved by signs", EARLY, masters(lambda n, o: o + 1e-3 * (n - o).sign(), "*mlp_in.bias")),
    ("weights rounded to bfloat16", EARLY, masters(lambda new, old: new.bfloat16().float())),
    ("a quarter of a matrix set back", ONCE, longer(-5, QKV, rows(0, 0.25))),
    ("noise on half of a matrix once", ONCE, masters(lambda new, old: noisy(0.02)(new), MLP_IN, FIRST_HALF)),
    ("half of the columns not updated", MIDDLE, longer(0, OUT, columns(0, 0.5))),
    ("5 % of the elements not updated", EARLY, masters(mostly_new)),
    ("an update of another block", LATE, masters(lambda new, old: old + (new - old).flip(0), MLP_OUT)),
    ("half the first moments forgotten", ONCE, moments(torch.zeros_like, "exp_avg", part=elements(0.5, 1))),
    ("a matrix's second moments forgotten", ONCE, moments(torch.zeros_like, "exp_avg_sq", QKV)),
    ("first moments in bfloat16", EARLY, moments(in_bfloat16, "exp_avg")),
    ("second moments in bfloat16", EARLY, moments(in_bfloat16, "exp_avg_sq")),
    ("second moments of rows", LATE, moments(row_means, "exp_avg_sq", "blocks.*.weight")),
    ("a first moment doubled", ONCE, moments(lambda m: 2 * m, "exp_avg", "head.weight")),
    ("moments of two blocks exchanged", ONCE, moments_swapped),
    ("half of the second moments doubled", LATE, moments(lambda m: 2 * m, "exp_avg_sq", MLP_IN, FIRST_HALF)),
    ("all first moments forgotten", ONCE, forgets("exp_avg")),
    ("norms do not decay", EARLY, decays(-1e-4, "*norm.weight")),
    ("half of the embedding decays tenfold", EARLY, decayed(9e-4, "tokens.weight", FIRST_HALF)),
]  # fmt: skip
_MODELS: Sequence[tuple[str, tuple[int, int], Change]] = [
    ("half of a matrix published late", EARLY, published(old_weights, MLP_IN, FIRST_HALF)),
    ("half of a matrix published late for three steps", MIDDLE, published(old_weights, MLP_IN, FIRST_HALF)),
    ("the embedding published late", LATE, published(old_weights, "tokens.weight")),
    ("a rank's model published late once", ONCE, published(old_weights, ranks=(1,))),
    ("a matrix published in e4m3", EARLY, published(in_e4m3, MLP_OUT)),
    ("a row of a rank's matrix is zero", LATE, published(no_weights, QKV, rows(0, 0.005), (1,))),
    ("biases published late for three steps", MIDDLE, published(old_weights, "*.bias")),
]  # fmt: skip
_RUNS: Sequence[tuple[str, tuple[int, int], Wrong]] = [
    ("rank 1 lost late", LATE, Wrong(weight=lambda rank, micro: rank != 1)),
    ("rank 1 counts half", EARLY, Wrong(weight=lambda rank, micro: 1 - rank / 2)),
    ("the last micro-batch lost for three steps", MIDDLE, Wrong(weight=lambda rank, micro: micro != 1)),
    ("micro-batches with weights 3 to 1", EARLY, Wrong(weight=lambda rank, micro: 1.5 - micro)),
    ("a micro-batch of a rank lost once", ONCE, Wrong(weight=lambda rank, micro: rank + micro != 2)),
    ("rank 1 uphill once", ONCE, Wrong(weight=lambda rank, micro: 1 - 2 * rank)),
    ("rank 1 repeats rank 0's batch", EARLY, Wrong(batch=lambda step, micro, rank: (step, micro, 0))),
    ("the batch of the step before", LATE, Wrong(batch=lambda step, micro, rank: (step - 1, micro, rank))),
    ("the first micro-batch twice", EARLY, Wrong(batch=lambda step, micro, rank: (step, 0, rank))),
    ("rank 1 repeats its first batch", LATE, Wrong(batch=lambda step, micro, r: (step * (1 - r), micro, r))),
    ("rank 1's embedding lost", EARLY, of_rank_1(scaled(0, "tokens.weight"))),
    ("half of rank 1's matrix lost", EARLY, of_rank_1(scaled(0, MLP_IN, FIRST_HALF))),
    ("rank 1's biases lost", LATE, of_rank_1(scaled(0, "*.bias"))),
    ("rank 1's block twice", LATE, of_rank_1(scaled(2, "blocks.1.*"))),
    ("30 % noise of rank 1", EARLY, of_rank_1(each(noisy(0.3)))),
    ("rank 1 in 4-bit integers", EARLY, of_rank_1(each(as_integer(7)))),
    ("eps of 1e-4", EARLY, Wrong(settings={"eps": 1e-4})),
    ("a beta2 of 0.99", LATE, Wrong(settings={"beta2": 0.99})),
    ("a beta1 of 0.8", LATE, Wrong(settings={"beta1": 0.8})),
    ("bias corrections of five steps later", EARLY, Wrong(later=5)),
    ("no bias corrections", EARLY, Wrong(later=100_000)),
]  # fmt: skip
_LATE: Sequence[tuple[str, Wrong]] = [
    ("no gradients", Wrong(gradients=scaled(0))),
    ("half of each gradient", Wrong(gradients=scaled(0.5))),
    ("all gradients uphill", Wrong(gradients=scaled(-1))),
    ("rank 1 lost", Wrong(weight=lambda rank, micro: rank != 1)),
    ("the last micro-batch lost", Wrong(weight=lambda rank, micro: micro != 1)),
    ("a block lost", Wrong(gradients=scaled(0, "blocks.1.*"))),
    ("no updates", Wrong(after=longer(0))),
    ("a matrix not updated", Wrong(after=longer(0, MLP_IN))),
    ("the batch of the step before", Wrong(batch=lambda step, micro, rank: (step - 1, micro, rank))),
    ("gradients of the step before", Wrong(gradients=with_old(lambda now, old: old))),
]
OF_GPT = [
    *(Listed(name, *when, Wrong(gradients=change)) for name, when, change in _GRADIENTS),
    *(Listed(name, *when, Wrong(after=change)) for name, when, change in _UPDATES),
    *(Listed(name, *when, Wrong(models=change)) for name, when, change in _MODELS),
    *(Listed(name, *when, wrong) for name, when, wrong in _RUNS),
]
OF_CNN = [
    Listed("rank 1's running statistics frozen", *MIDDLE, Wrong(models=buffers(old_weights, ranks=(1,)))),
    Listed("running statistics moved twice", *MIDDLE, Wrong(models=buffers(lambda new, old: 2 * new - old))),
]  # fmt: skip


def late(first: int) -> list[Listed]:
    """Return faults of at least half of a term, from a late step of a long run on."""
    return [Listed(f"{name} from step {first + 1} on", first, 999, wrong) for name, wrong in _LATE]
