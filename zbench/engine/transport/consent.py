"""What each rank does alone, and all ranks do or none: it may fail on one of them."""

import zlib
from collections.abc import Iterator
from contextlib import contextmanager

import torch

from zbench.engine.protocols import Collectives, Tag
from zbench.engine.transport.agreement import Agreement
from zbench.errors import RanksDisagreeError, UsageError

_CONSENT = Tag("whether every rank can build its part of the engine")


@contextmanager
def all_or_none(collectives: Collectives, agreement: Agreement) -> Iterator[list[str]]:
    """Raise on every rank if the block raises on one, or if ranks differ in the lines that it appends to the
    list that is yielded. The block may call no collective.
    """
    lines: list[str] = []
    failed: Exception | None = None
    try:
        yield lines
    except Exception as error:
        failed = error
    code = zlib.crc32("\n".join(lines).encode())
    mine = torch.tensor([float(failed is not None), float(code)], dtype=torch.float64)
    found = collectives.all_gather_small(mine, _CONSENT)
    if found[:, 0].any():
        texts = agreement.meet("" if failed is None else f"{type(failed).__name__}: {failed}")
        told = "; ".join(f"rank {rank}: {text}" for rank, text in texts.items() if text)
        raise failed or UsageError(f"nothing has changed, because another rank cannot build its part; {told}")
    if (found != found[0]).any():
        raise _differing(agreement.meet("\n".join(lines)))


def _differing(texts: dict[int, str]) -> RanksDisagreeError:
    rows = {rank: text.split("\n") for rank, text in texts.items()}
    common = set.intersection(*(set(row) for row in rows.values()))
    own = {rank: [line for line in row if line not in common] for rank, row in rows.items()}
    told = "; ".join(f"rank {rank}: {row[0] if row else 'nothing more'}" for rank, row in own.items())
    return RanksDisagreeError(
        f"expected the same trained parameters in the same groups on every rank, got {told}; freeze, unfreeze"
        " and add parameters alike on every rank"
    )
