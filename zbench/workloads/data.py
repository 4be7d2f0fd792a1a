"""Sources of samples: random tokens, the bytes of a text file, or samples of the user's Dataset."""

import hashlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, IterableDataset, default_collate

from zbench.errors import UsageError
from zbench.spec.inputs import text_problem
from zbench.spec.workload import WorkloadSpec
from zbench.workloads.custom import load_callable
from zbench.workloads.workload import Batch, Data, drawn_by

BYTE_VOCABULARY = 256


def _inputs_and_targets(windows: torch.Tensor) -> Batch:
    """Split windows [B, T + 1] into tokens [B, T] and the tokens that follow them [B, T]."""
    return windows[:, :-1].contiguous(), windows[:, 1:].contiguous()


class SyntheticTokens:
    """Uniformly random int64 tokens in [0, vocabulary); a draw is (tokens, targets), each [B, T]."""

    def __init__(self, *, vocabulary: int, sequence_length: int) -> None:
        self._vocabulary, self._length = vocabulary, sequence_length + 1

    def draw(self, seed: int, samples: int) -> Batch:
        generator = torch.Generator().manual_seed(seed)
        shape = (samples, self._length)
        return _inputs_and_targets(torch.randint(self._vocabulary, shape, generator=generator))


class TextBytes:
    """Windows at random offsets of a file; a token is a byte (int64). The file is memory-mapped.

    UsageError if the file is missing, unreadable or shorter than sequence_length + 1 bytes.
    """

    def __init__(self, path: Path, *, sequence_length: int) -> None:
        if problem := text_problem(path, sequence_length):
            raise UsageError(f"workload.data.text: {problem}")
        self._bytes = np.memmap(path, dtype=np.uint8, mode="r")
        self._length = sequence_length + 1

    def draw(self, seed: int, samples: int) -> Batch:
        generator = torch.Generator().manual_seed(seed)
        offsets = torch.randint(len(self._bytes) - self._length + 1, (samples,), generator=generator)
        windows = np.stack([self._bytes[offset : offset + self._length] for offset in offsets.tolist()])
        return _inputs_and_targets(torch.from_numpy(windows.astype(np.int64)))


def token_data(spec: WorkloadSpec, vocabulary: int, base_dir: Path) -> Data:
    """Return the token data of a workload. UsageError for a text if the vocabulary is below 256."""
    length = spec.sequence_length
    if spec.data.text is None:
        return SyntheticTokens(vocabulary=vocabulary, sequence_length=length)
    if vocabulary < BYTE_VOCABULARY:
        raise UsageError(
            f"workload.options.vocabulary: text needs {BYTE_VOCABULARY}, one for each byte, got {vocabulary}"
        )
    return TextBytes(base_dir / spec.data.text, sequence_length=length)


_KEY = "workload.data.dataset"
_EXPECTED = (
    "expected module:callable, where callable() returns a torch Dataset with a length, or a DataLoader of one"
)
_SAMPLED = 16


class DatasetBatches:
    """Samples drawn with replacement by seed, then collated. names: keys of a dict batch, else empty."""

    def __init__(self, name: str, base_dir: Path) -> None:
        dataset = load_callable(name, base_dir, key=_KEY, expected=_EXPECTED)()
        self._name = name
        self._collate: Callable[[list[Any]], Any] = default_collate
        if isinstance(dataset, DataLoader):
            self._collate, dataset = dataset.collate_fn, dataset.dataset
        sized = hasattr(dataset, "__getitem__") and hasattr(dataset, "__len__")
        if isinstance(dataset, IterableDataset) or not sized:
            problem = f"{name} returned a {type(dataset).__name__}, of which no sample can be chosen"
            raise UsageError(f"{_KEY}: {problem}; {_EXPECTED}")
        if len(dataset) == 0:
            raise UsageError(f"{_KEY}: {name} returned an empty {type(dataset).__name__}; give it samples")
        self._dataset = dataset
        self.names, _ = self._drawn(0, 1)
        self.fingerprint = f"dataset-{len(dataset)}-{self._digest()}"

    def draw(self, seed: int, samples: int) -> Batch:
        """Return so many samples, bit for bit the same for the same seed and number."""
        return self._drawn(seed, samples)[1]

    def _drawn(self, seed: int, samples: int) -> tuple[tuple[str, ...], Batch]:
        generator = torch.Generator().manual_seed(seed)
        indices = torch.randint(len(self._dataset), (samples,), generator=generator).tolist()
        with drawn_by(seed):  # a transform may draw random numbers
            batch = self._collate([self._dataset[index] for index in indices])
        names: tuple[str, ...] = ()
        if isinstance(batch, Mapping):
            names, batch = tuple(map(str, batch)), tuple(batch.values())
        if isinstance(batch, Tensor):
            batch = (batch,)
        if not isinstance(batch, list | tuple) or not batch or not all(isinstance(x, Tensor) for x in batch):
            raise UsageError(
                f"{_KEY}: {self._name}: expected samples that collate to a tensor or a tuple or dict of them,"
                f" got {type(batch).__name__}; give the DataLoader a collate_fn"
            )
        return names, tuple(batch)

    def _digest(self) -> str:
        """Return a hash (16 hex digits) of up to _SAMPLED evenly spaced samples."""
        digest = hashlib.blake2b(digest_size=8)
        size = len(self._dataset)
        for place in sorted({size * k // _SAMPLED for k in range(_SAMPLED)}):
            with drawn_by(place):
                sample = self._dataset[place]
            values = sample.values() if isinstance(sample, Mapping) else sample
            for value in values if isinstance(values, list | tuple) else [values]:
                digest.update(repr(value.tolist() if isinstance(value, Tensor) else value).encode())
        return digest.hexdigest()
