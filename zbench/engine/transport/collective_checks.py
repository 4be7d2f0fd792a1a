"""What all ranks do or none: it may fail on one of them, or they may have been given different things."""

import json
import zlib
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

import torch

from zbench.engine.protocols import Collectives, Tag
from zbench.engine.transport.agreement import Agreement
from zbench.engine.transport.buffers import to_host
from zbench.errors import RanksDisagreeError, UsageError


@dataclass(frozen=True, slots=True)
class Joint:
    """What all ranks do or none, in the words of its errors. alike: what must be the same on every rank.
    remedy: what makes it so.
    """

    tag: Tag
    alike: str
    remedy: str


MODEL = Joint(
    Tag("whether every rank has the same model"),
    "a model with the same parameters and buffers on every rank, in the same order",
    "build the model alike on every rank",
)
BUILD = Joint(
    Tag("whether every rank can build its part of the engine"),
    "the same trained parameters in the same groups on every rank",
    "freeze the same parameters on every rank",
)
WRITE = Joint(
    Tag("whether gathered(write=True) ended well on every rank"),
    "gathered(write=True) of the same parameters on every rank",
    "nothing was written; name the same parameters in the same order on every rank",
)


@contextmanager
def all_or_none(collectives: Collectives, agreement: Agreement, joint: Joint) -> Iterator[list[str]]:
    """Raise on every rank if the block raises on one, or if ranks differ in the lines that it appends to the
    list that is yielded. A block that calls collectives must call the same ones on every rank.
    """
    lines: list[str] = []
    failed: BaseException | None = None
    try:
        yield lines
    except BaseException as error:
        failed = error
    numbers = [float(failed is not None), float(zlib.crc32("\n".join(lines).encode()))]
    sent = torch.tensor(numbers, dtype=torch.float64, device="cpu")
    gathered = to_host(collectives.all_gather_small(sent, joint.tag), agreement.attend)
    if gathered[:, 0].any():
        texts = agreement.meet("" if failed is None else f"{type(failed).__name__}: {failed}")
        reasons = "; ".join(f"rank {rank}: {text}" for rank, text in texts.items() if text)
        raise failed or UsageError(f"nothing has changed, because another rank failed; {reasons}")
    if failed is not None:  # what a simulation gathers says nothing
        raise failed
    if (gathered != gathered[0]).any():
        raise _differing(agreement.meet("\n".join(lines)), joint)


def _differing(texts: dict[int, str], joint: Joint) -> RanksDisagreeError:
    rows = {rank: text.split("\n") for rank, text in texts.items()}
    common = set.intersection(*(set(row) for row in rows.values()))
    rest = {rank: [line for line in row if line not in common] for rank, row in rows.items()}
    if not any(rest.values()):  # the same lines in another order
        columns = enumerate(zip(*rows.values(), strict=False))
        first = next((i for i, column in columns if len(set(column)) > 1), 0)
        rest = {rank: row[first:] for rank, row in rows.items()}
    first_lines = "; ".join(f"rank {rank}: {row[0] if row else 'nothing more'}" for rank, row in rest.items())
    return RanksDisagreeError(f"expected {joint.alike}, got {first_lines}; {joint.remedy}")


@dataclass(frozen=True, slots=True)
class Terms:
    """What every rank must have in common to take a step. `refusal`: why this rank cannot take it. edits: the
    parameters that were edited, by name, with checksums; `checksums` returns those of other names.
    """

    hyperparameters: tuple[object, ...]
    refusal: str | None
    edits: Mapping[str, int] = field(default_factory=dict)
    checksums: Callable[[Collection[str]], Mapping[str, int | None]] = lambda names: {}

    def words(self, agreement: Agreement) -> list[int]:
        """Return what ranks add up to compare: whether this one refuses, then `comparable` numbers."""
        code = zlib.crc32(repr((self.hyperparameters, sorted(self.edits.items()))).encode())
        return [int(self.refusal is not None), *comparable([code, *map(int, agreement.digest())])]

    def check(self, sums: Sequence[int], world_size: int, agreement: Agreement) -> None:
        """Raise the same error on every rank unless all ranks' words, added up, agree and none refuses."""
        if sums[0]:
            texts = agreement.meet(self.refusal or "")
            reasons = "; ".join(f"rank {rank}: {text}" for rank, text in texts.items() if text)
            raise UsageError(f"the step is refused, nothing has changed; {reasons}")
        code_differs, *calls_differ = differing(sums[1:], world_size)
        if code_differs:
            texts = agreement.meet(str(self.hyperparameters))
            if len(set(texts.values())) > 1:
                raise RanksDisagreeError(
                    "expected the same param_groups on every rank (lr, betas, eps, weight_decay, ...), got "
                    + "; ".join(f"rank {rank}: {text}" for rank, text in texts.items())
                )
            self._check_edits(agreement)
        if any(calls_differ):
            raise agreement.differing()

    def _check_edits(self, agreement: Agreement) -> None:
        """Raise UsageError on every rank unless edited parameters have the same values on all."""
        names = {rank: json.loads(t) for rank, t in agreement.meet(json.dumps(sorted(self.edits))).items()}
        sums = dict(sorted(self.checksums({name for of_rank in names.values() for name in of_rank}).items()))
        values = [json.loads(text) for text in agreement.meet(json.dumps(sums)).values()]
        unlike = [name for name in sums if len({of_rank.get(name) for of_rank in values}) > 1]
        if unlike:
            edits = ", ".join(
                f"rank {r}: {[n for n in of_rank if n in unlike] or 'none'}" for r, of_rank in names.items()
            )
            raise UsageError(
                f"the step is refused: expected the same values of {unlike[0]!r} on every rank, got others"
                f" (edited since the last step: {edits}). Make the edit on every rank; or call"
                " engine.zero_grad(), and make it in engine.gathered(..., write=True), which gives every rank"
                " the values of rank 0"
            )


_HALF = (1 << 24) - 1  # its square, times 2^15 ranks, fits a word


def comparable(numbers: Iterable[int]) -> list[int]:
    """Return words whose sums over all ranks show whether numbers (48 bits) are the same on every rank."""
    return [word for n in numbers for half in (n & _HALF, n >> 24) for word in (half, half * half)]


def differing(sums: Sequence[int], world_size: int) -> list[bool]:
    """Return of each number whether ranks differ in it: whether one of its halves has a variance."""
    halves = zip(sums[::2], sums[1::2], strict=True)
    varies = [world_size * of_squares != total * total for total, of_squares in halves]
    return [low or high for low, high in zip(varies[::2], varies[1::2], strict=True)]
