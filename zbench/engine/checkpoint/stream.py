"""Writing a safetensors file tensor by tensor: what the library does only with all of them in memory."""

import json
from collections.abc import Iterable
from pathlib import Path

import torch

from zbench.engine.checkpoint.state import StateEntry
from zbench.errors import UsageError

_NAMES = {
    torch.float64: "F64",
    torch.float32: "F32",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.float8_e4m3fn: "F8_E4M3",
    torch.float8_e5m2: "F8_E5M2",
    torch.int64: "I64",
    torch.int32: "I32",
    torch.int16: "I16",
    torch.int8: "I8",
    torch.uint64: "U64",
    torch.uint32: "U32",
    torch.uint16: "U16",
    torch.uint8: "U8",
    torch.bool: "BOOL",
    torch.complex64: "C64",
}


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
