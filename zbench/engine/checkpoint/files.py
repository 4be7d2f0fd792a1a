"""Checkpoints as safetensors files, to be resumed at any world size and stage. Sharded ones: `distributed`.

`state.safetensors` holds the keys of `state`, `rng-R-of-W.safetensors` a rank's random number generators. A
checkpoint gets its name only when it is complete. The state is written tensor by tensor; the library writes a
file only with all of them in memory.
"""

import json
import os
import random
import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from safetensors.torch import save as file_of
from torch import Tensor

from zbench.engine.checkpoint.state import StateEntry
from zbench.engine.protocols import Collectives
from zbench.errors import UsageError, undamaged

REMEDY = "resume from another checkpoint"


class Saves(Protocol):
    """What saving and loading need of an engine."""

    @property
    def collectives(self) -> Collectives: ...
    def state_entries(self) -> Sequence[StateEntry]: ...
    def load_state_dict(self, state: Mapping[str, Tensor]) -> None: ...


def save(engine: Saves, path: str | Path) -> None:
    """Write a checkpoint directory; every rank calls it. UsageError if `path` exists."""
    path = Path(path)
    comm = engine.collectives
    if path.exists():
        raise UsageError(f"{path}: expected a directory that is not there yet; choose another name")
    draft = path.with_name(path.name + ".partial")
    if comm.rank == 0:
        shutil.rmtree(draft, ignore_errors=True)
        draft.mkdir(parents=True)
    comm.barrier()
    write_stream(engine.state_entries(), draft / "state.safetensors" if comm.rank == 0 else None)
    save_file(rng_state(), draft / _rng_file(comm))
    comm.barrier()
    if comm.rank == 0:
        os.replace(draft, path)
    comm.barrier()


def save_weights(engine: Saves, file: str | Path) -> None:
    """Write the model's own state to a safetensors file, under its own names; every rank calls it.

    Weights are float32 master weights where they are trained. No rank holds more than one whole parameter.
    UsageError if `file` exists.
    """
    file = Path(file)
    comm = engine.collectives
    if file.exists():
        raise UsageError(f"{file}: expected a file that is not there yet; choose another name")
    kinds = ("param.", "frozen.", "buffer.")
    chosen = [entry for entry in engine.state_entries() if entry.key.startswith(kinds)]
    entries = [replace(entry, key=entry.key.partition(".")[2]) for entry in chosen]
    draft = file.with_name(file.name + ".partial")
    comm.barrier()
    write_stream(entries, draft if comm.rank == 0 else None)
    if comm.rank == 0:
        os.replace(draft, file)
    comm.barrier()


def _rng_file(comm: Collectives) -> str:
    return f"rng-{comm.rank:05d}-of-{comm.world_size:05d}.safetensors"


def load(engine: Saves, path: str | Path, *, rng: bool = True) -> None:
    """Resume from a checkpoint directory; every rank calls it. UsageError for one that is incomplete or
    unfit.

    rng: also set this rank's random number generators, where the checkpoint is of as many ranks.
    """
    path = Path(path)
    if not (path / "state.safetensors").exists():
        raise UsageError(
            f"{path}: expected state.safetensors in a checkpoint directory; what torch.distributed.checkpoint"
            " has saved, it loads into DistributedState(engine)"
        )
    state = _SafetensorsFile(path / "state.safetensors")
    rng_file = path / _rng_file(engine.collectives)
    with undamaged(rng_file, REMEDY):
        generators = load_file(rng_file) if rng and rng_file.exists() else None
        check_rng_state(rng_state() if generators is None else generators)
    engine.load_state_dict(state)
    if generators is not None:
        set_rng_state(generators)


class _SafetensorsFile(Mapping[str, Tensor]):
    """A safetensors file, read tensor by tensor."""

    def __init__(self, file: Path) -> None:
        self._path = file
        with undamaged(file, REMEDY):
            self._file = safe_open(file, framework="pt")
        self._keys: list[str] = list(self._file.keys())  # type: ignore[no-untyped-call]

    def __getitem__(self, key: str) -> Tensor:
        if key not in self._keys:
            raise KeyError(key)
        with undamaged(self._path, REMEDY):
            tensor: Tensor = self._file.get_tensor(key)  # type: ignore[no-untyped-call]
            return tensor

    def __iter__(self) -> Iterator[str]:
        return iter(self._keys)

    def __len__(self) -> int:
        return len(self._keys)


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
        file = file_of({"": torch.empty(0, dtype=dtype, device="cpu")})
    except KeyError:
        return None
    name: str = json.loads(file[8:])[""]["dtype"]
    return name


def rng_state() -> dict[str, Tensor]:
    """Return the state of every generator that a training script is likely to draw from."""
    _, numbers, _ = random.getstate()
    _, keys, position, has_gauss, gauss = np.random.get_state()
    return {
        "torch.cpu": torch.get_rng_state(),
        **{f"torch.cuda.{k}": state for k, state in enumerate(_cuda_states())},
        "python": torch.tensor(numbers, dtype=torch.int64, device="cpu"),
        "numpy.keys": torch.from_numpy(np.asarray(keys, dtype=np.int64)),
        "numpy.rest": torch.tensor([position, has_gauss, gauss], dtype=torch.float64, device="cpu"),
    }


def set_rng_state(state: dict[str, Tensor]) -> None:
    """Have the generators go on from `state`; devices that are not there are left out."""
    _set(state, torch.default_generator, random, np.random)
    for k in range(len(_cuda_states())):
        if f"torch.cuda.{k}" in state:
            torch.cuda.set_rng_state(state[f"torch.cuda.{k}"], k)


def check_rng_state(state: dict[str, Tensor]) -> None:
    """Try `state` on generators that nobody draws from; an exception of theirs where it does not fit."""
    _set(state, torch.Generator(), random.Random(), np.random.RandomState())


def _set(state: dict[str, Tensor], cpu: torch.Generator, python: Any, numpy: Any) -> None:
    cpu.set_state(state["torch.cpu"])
    python.setstate((3, tuple(state["python"].tolist()), None))
    position, has_gauss, gauss = state["numpy.rest"].tolist()
    keys = state["numpy.keys"].numpy().astype(np.uint32)
    numpy.set_state(("MT19937", keys, int(position), int(has_gauss), gauss))


def _cuda_states() -> list[Tensor]:
    ready = torch.cuda.is_initialized()  # type: ignore[no-untyped-call]
    return torch.cuda.get_rng_state_all() if ready else []
