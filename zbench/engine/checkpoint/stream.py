"""Writing a safetensors file tensor by tensor: what the library does only with all of them in memory."""

import json
from collections.abc import Iterable
from pathlib import Path

import torch
from safetensors.torch import _TYPES  # the library's own table; it has no public name

from zbench.engine.checkpoint.state import StateEntry
from zbench.errors import UsageError

_NAMES = {dtype: name for name, dtype in _TYPES.items()}


def write_stream(entries: Iterable[StateEntry], file: Path | None) -> None:
    """Read `entries`, a collective, one at a time, and write them to a file on the rank that names one.

    No rank holds more than one of them. UsageError for a dtype that the format does not know.
    """
    ordered = sorted(entries, key=lambda entry: -entry.dtype.itemsize)  # every tensor begins aligned
    header = _header(ordered)
    if file is None:
        for entry in ordered:
            entry.read()
        return
    with file.open("wb") as out:
        out.write(header)
        for entry in ordered:
            out.write(entry.read().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data)


def _header(entries: Iterable[StateEntry]) -> bytes:
    table: dict[str, object] = {}
    at = 0
    for entry in entries:
        if entry.dtype not in _NAMES:
            raise UsageError(f"{entry.key!r}: expected a dtype that safetensors can hold, got {entry.dtype}")
        size = entry.shape.numel() * entry.dtype.itemsize
        place = [at, at := at + size]
        table[entry.key] = {"dtype": _NAMES[entry.dtype], "shape": list(entry.shape), "data_offsets": place}
    text = json.dumps(table, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text
