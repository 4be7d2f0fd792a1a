"""Writing a safetensors file tensor by tensor: what the library does only with all of them in memory."""

import json
from collections.abc import Iterable
from functools import cache
from pathlib import Path

import torch
from safetensors.torch import save

from zbench.engine.checkpoint.state import StateEntry
from zbench.errors import UsageError


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
        size = entry.shape.numel() * entry.dtype.itemsize
        place = [at, at := at + size]
        name = _name(entry.dtype)
        if name is None:
            raise UsageError(f"{entry.key!r}: expected a dtype that safetensors can hold, got {entry.dtype}")
        table[entry.key] = {"dtype": name, "shape": list(entry.shape), "data_offsets": place}
    text = json.dumps(table, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text


@cache
def _name(dtype: torch.dtype) -> str | None:
    """Return what the library calls a dtype in the header of a file; None for one that it does not know."""
    try:
        file = save({"": torch.empty(0, dtype=dtype)})
    except KeyError:
        return None
    name: str = json.loads(file[8:])[""]["dtype"]
    return name
