"""Tensors in files, read and written in pieces: a process holds the piece that it works on, and no more.

Files are read with `pread`, not mapped: the pages of a mapping count as memory of the process.
"""

import json
import os
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import IO, Protocol

import numpy as np
import torch
from torch import Tensor

from zbench.verify.sums import digest

_DTYPES = {
    "F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16,
    "I64": torch.int64, "I32": torch.int32, "I16": torch.int16, "I8": torch.int8, "U8": torch.uint8,
    "BOOL": torch.bool, "C64": torch.complex64,
}  # fmt: skip
_HEADER = 8
"""Bytes at the begin of a safetensors file that hold the length of its JSON header."""
_COPIED = 1 << 18


class Elements(Protocol):
    """The elements of a tensor in memory or in a file, flat: `elements[start:stop]` is a tensor."""

    def __getitem__(self, part: slice) -> Tensor: ...

    def __len__(self) -> int: ...


class FileTensor:
    """A tensor in a file. `elements[start:stop]` reads a run of the flat tensor."""

    def __init__(self, file: IO[bytes], offset: int, dtype: torch.dtype, shape: tuple[int, ...]) -> None:
        self._file, self._offset, self.dtype = file, offset, dtype
        self.shape = torch.Size(shape)

    def __len__(self) -> int:
        return self.shape.numel()

    def __getitem__(self, part: slice) -> Tensor:
        start, stop, _ = part.indices(len(self))
        size = self.dtype.itemsize
        raw = np.empty(max(0, stop - start) * size, np.uint8)  # torch's memory counts as the trial's
        if not len(raw):
            return torch.empty(0, dtype=self.dtype)
        if os.preadv(self._file.fileno(), [raw.data], self._offset + start * size) < len(raw):
            raise ValueError("the file ends too early")
        return torch.from_numpy(raw).view(self.dtype)


class DigestedTensor(FileTensor):
    """A tensor in a file that must have a digest.

    The digests of the runs that are read add up in `seen`, and their elements in `count`. So a damaged file
    is noticed after a comparison, in which the ranks read each element once.
    """

    seen, count = 0, 0

    def __getitem__(self, part: slice) -> Tensor:
        values = super().__getitem__(part)
        self.seen = (self.seen + digest(values, part.indices(len(self))[0])) % 2**64
        self.count += len(values)
        return values


class TensorFile:
    """A safetensors file that is open for reading. texts: its metadata. tensors: by name."""

    def __init__(self, path: Path) -> None:
        """ValueError, KeyError or OSError for a file that is damaged or not there."""
        self._file = path.open("rb", buffering=0)  # it is closed with the last tensor that reads it
        size = int.from_bytes(self._file.read(_HEADER), "little")
        end = os.fstat(self._file.fileno()).st_size
        if not 0 < size <= end - _HEADER:
            raise ValueError("its header has another length")
        header = json.loads(self._file.read(size))
        self.texts: dict[str, str] = header.pop("__metadata__", {})
        self.tensors: dict[str, DigestedTensor] = {}
        for name, about in header.items():
            dtype, shape = _DTYPES[about["dtype"]], tuple(about["shape"])
            begin, stop = about["data_offsets"]
            tensor = DigestedTensor(self._file, _HEADER + size + begin, dtype, shape)
            if stop - begin != len(tensor) * dtype.itemsize or _HEADER + size + stop > end:
                raise ValueError(f"{name} has another size")
            self.tensors[name] = tensor


class StateFile:
    """Tensors of a step's state in a file without a name, which ends with the process.

    It lies in the scratch folder (`zbench.scratch`).
    """

    def __init__(self, folder: str) -> None:
        self._file = tempfile.TemporaryFile(dir=folder)  # noqa: SIM115 - it is closed with its owner
        self._tensors: dict[str, dict[str, FileTensor]] = {}

    def put(self, parts: Mapping[str, Mapping[str, Tensor]]) -> None:
        """Store these flat tensors in place of earlier ones; those of a device are copied in pieces."""
        self._file.seek(0)
        self._tensors = {}
        for key, part in parts.items():
            for kind, value in part.items():
                offset = self._file.tell()
                for piece in torch.split(value.detach(), _COPIED):
                    self._file.write(piece.cpu().contiguous().view(torch.uint8).numpy().data)
                stored = FileTensor(self._file, offset, value.dtype, (len(value),))
                self._tensors.setdefault(key, {})[kind] = stored
        self._file.flush()
        self._file.truncate()

    def take(self) -> dict[str, dict[str, FileTensor]]:
        """Return the stored tensors; they are read from the file."""
        return self._tensors
