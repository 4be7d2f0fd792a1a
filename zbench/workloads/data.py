"""Tokens: seeded random ones, or the bytes of a text file. A micro-batch is (tokens, targets), each [B, T]
int64."""

from pathlib import Path

import numpy as np
import torch

from zbench.errors import UsageError
from zbench.spec.workload import WorkloadSpec
from zbench.workloads.workload import Batch, Data

BYTE_VOCABULARY = 256


def _inputs_and_targets(windows: torch.Tensor) -> Batch:
    """Split windows [B, T + 1] into tokens [B, T] and the tokens that follow them [B, T]."""
    return windows[:, :-1].contiguous(), windows[:, 1:].contiguous()


class SyntheticTokens:
    """Uniformly random tokens below `vocabulary`."""

    def __init__(self, *, vocabulary: int, sequence_length: int, batch_size: int) -> None:
        self._vocabulary, self._shape = vocabulary, (batch_size, sequence_length + 1)

    def micro_batch(self, seed: int) -> Batch:
        generator = torch.Generator().manual_seed(seed)
        return _inputs_and_targets(torch.randint(self._vocabulary, self._shape, generator=generator))


class TextBytes:
    """Windows at random places of a file; a token is a byte. The file is mapped, not read into memory.

    Raises UsageError where the file is missing, unreadable or shorter than one sequence and its last target.
    """

    def __init__(self, path: Path, *, sequence_length: int, batch_size: int) -> None:
        needed = sequence_length + 1
        try:
            size = path.stat().st_size
            if size < needed:
                held = "is empty" if size == 0 else f"holds {size} bytes"
                raise UsageError(
                    f"text file {path} {held}; one sequence needs {needed} (workload.sequence_length + 1): "
                    "name a longer file under workload.data.text or shorten the sequence"
                )
            self._bytes = np.memmap(path, dtype=np.uint8, mode="r")
        except OSError as error:
            raise UsageError(
                f"cannot read text file {path}: {error.strerror}; "
                "workload.data.text is a path relative to the sweep file"
            ) from error
        self._length, self._batch_size = needed, batch_size

    def micro_batch(self, seed: int) -> Batch:
        generator = torch.Generator().manual_seed(seed)
        places = torch.randint(len(self._bytes) - self._length + 1, (self._batch_size,), generator=generator)
        windows = np.stack([self._bytes[place : place + self._length] for place in places.tolist()])
        return _inputs_and_targets(torch.from_numpy(windows.astype(np.int64)))


def token_data(spec: WorkloadSpec, vocabulary: int, base_dir: Path) -> Data:
    """Return the tokens that a workload names; UsageError where the vocabulary cannot hold a text's bytes."""
    if spec.data.text is None:
        return SyntheticTokens(
            vocabulary=vocabulary, sequence_length=spec.sequence_length, batch_size=spec.micro_batch_size
        )
    if vocabulary < BYTE_VOCABULARY:
        raise UsageError(
            f"workload.options.vocabulary: text needs {BYTE_VOCABULARY}, one for each byte, got {vocabulary}"
        )
    return TextBytes(
        base_dir / spec.data.text, sequence_length=spec.sequence_length, batch_size=spec.micro_batch_size
    )
