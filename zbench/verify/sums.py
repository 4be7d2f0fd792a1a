"""Digests and signed sums of tensors: figures of a few bytes that are additive over the elements.

A rank takes the sums of its own runs of elements (`Run`). The sums of the runs of all ranks add up to the
sums of the whole parameters. So a verdict needs no process that holds a whole model.

The digest tells whether bits are equal. Modulo 2^64 it is the sum of all 8-byte words, each times an odd
number that belongs to its position (multilinear hashing). One changed word always changes the digest;
several changes cancel with a probability of about 2^-63. -0.0 and 0.0 differ, as their bits do.

Signed sums tell how a tensor changed. A tensor is a matrix of its first dimension and all others. The
matrix is cut into at most 128 cells: row parts times column parts. In each cell the elements are added up
with random signs. The scalar product of two tensors is estimated by that of their signed sums: of the whole
tensors, and of some rows (attention heads, shards) or columns of them.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache, lru_cache

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

CELLS = 128
"""Signed sums of one tensor."""
_ROW_PARTS = 8
_SIGNS = 1 << 18
"""Number of elements after which the signs repeat, and of columns of the widest tensor that is no vector."""
_WORD = 8
_BLOCK = 1 << 12
"""Words of a digest that share one power of `_BASE`."""
_BASE = 0x9E3779B97F4A7C15
_PIECE = {"cpu": 1 << 16}
_DEVICE_PIECE = 1 << 23
"""Elements that one operation reads. On a CPU the piece stays in a core's cache; on a device an intermediate
result of a piece takes 32 MiB."""
_STAGED_BLOCKS = 1 << 8

Words = NDArray[np.uint64]


@dataclass(frozen=True, slots=True)
class Run:
    """A run of elements of a parameter: `length` elements from `start` on in the flat tensor of `shape`."""

    name: str
    shape: tuple[int, ...]
    start: int
    length: int

    @classmethod
    def whole(cls, name: str, shape: Sequence[int]) -> "Run":
        """Return the run of all elements."""
        return cls(name, tuple(shape), 0, math.prod(shape))

    @property
    def stop(self) -> int:
        """The element after the last."""
        return self.start + self.length

    @property
    def is_whole(self) -> bool:
        """Whether the run has all elements of the parameter."""
        return self.length == math.prod(self.shape)


@dataclass(frozen=True, slots=True)
class Grid:
    """How a tensor of `rows` x `columns` is cut into cells."""

    rows: int
    columns: int
    row_parts: int
    column_parts: int

    @classmethod
    def of(cls, shape: Sequence[int]) -> "Grid":
        """Return the grid of a tensor's shape."""
        size = math.prod(shape)
        rows, columns = (shape[0], size // max(1, shape[0])) if len(shape) > 1 else (1, size)
        if columns > _SIGNS:
            rows, columns = size, 1
        most = CELLS // max(1, min(rows, _ROW_PARTS))
        column_parts = next(n for n in range(min(most, max(1, columns)), 0, -1) if columns % n == 0)
        return cls(rows, columns, min(max(1, rows), CELLS // column_parts), column_parts)

    def rows_of_part(self, part: int) -> tuple[int, int]:
        """Return the first row of a row part, and the row after its last."""
        return part * self.rows // self.row_parts, (part + 1) * self.rows // self.row_parts

    def pieces(self, start: int, stop: int, most: int) -> Iterator["_Piece"]:
        """Yield the pieces of a run, of about `most` elements: parts of one row, or whole rows of one row
        part.
        """
        for part in range(self.row_parts):
            first, last = (row * self.columns for row in self.rows_of_part(part))
            at, end = max(start, first), min(stop, last)
            while at < end:
                column = at % self.columns
                if column or end - at < self.columns:
                    length = min(end - at, self.columns - column)
                else:
                    length = min((end - at) // self.columns, max(1, most // self.columns)) * self.columns
                yield _Piece(part, 1, column, at, length)
                at += length

    def joined(self, pieces: Sequence["_Piece"], most: int) -> Iterator["_Piece"]:
        """Yield the pieces, with whole row parts of equal size that follow one another in one piece."""
        rows = self.rows // self.row_parts
        whole = rows * self.columns if self.rows % self.row_parts == 0 else -1
        waiting: _Piece | None = None
        for piece in pieces:
            if waiting is not None and piece.length == whole and waiting.length + whole <= most:
                waiting = replace(waiting, parts=waiting.parts + 1, length=waiting.length + whole)
                continue
            if waiting is not None:
                yield waiting
            waiting = piece if piece.length == whole else None
            if waiting is None:
                yield piece
        if waiting is not None:
            yield waiting


@dataclass(frozen=True, slots=True)
class _Piece:
    """Elements [at, at + length) of a tensor, from `column` on, in `parts` row parts from `part` on."""

    part: int
    parts: int
    column: int
    at: int
    length: int


@dataclass(frozen=True, slots=True)
class _Cells:
    """Signed sums on the device [targets, count]: of `count` cells from each (run, first cell) on."""

    sums: Tensor
    targets: Sequence[tuple[int, int]]
    count: int


class RunSums:
    """Takes the digests and signed sums of runs that lie on one device, again and again.

    A step's sums take a few operations a run, none of which waits for the device, and one read by the host
    for the digests, one for the signed sums.
    """

    def __init__(self, runs: Sequence[Run], device: torch.device) -> None:
        self._runs = tuple(runs)
        self._device = device
        self._piece = _PIECE.get(device.type, _DEVICE_PIECE)
        self._grids = [Grid.of(run.shape) for run in runs]
        self._pieces = [
            list(grid.joined(list(grid.pieces(run.start, run.stop, self._piece)), self._piece))
            for grid, run in zip(self._grids, runs, strict=True)
        ]

    @torch.no_grad()
    def digests(self, tensors: Sequence[Tensor]) -> NDArray[np.int64]:
        """Return [R] digests of the runs' elements in `tensors`, flat ones of any dtype."""
        return self.block_sums(tensors).digests(len(self._runs))

    @torch.no_grad()
    def block_sums(self, tensors: Sequence[Tensor]) -> "_BlockSums":
        """Begin to take the digests of the runs' elements: return the sums of blocks, on the device."""
        runs = [(run.start, tensor) for run, tensor in zip(self._runs, tensors, strict=True)]
        return _BlockSums.of(runs, self._device, self._piece)

    @torch.no_grad()
    def signed_sums(self, *kinds: Sequence[Tensor | None]) -> NDArray[np.float64]:
        """Return [kinds, R, 128] signed sums of the runs' elements in flat tensors; 0 if there is none.

        kinds: the R tensors of each kind of state, such as weights and moments.
        """
        sums = np.zeros((len(kinds), len(self._runs), CELLS))
        cells = [(kind, cells) for kind, tensors in enumerate(kinds) for cells in self.cells(tensors)]
        if cells:
            flat = torch.cat([one.sums.reshape(-1) for _, one in cells]).cpu().numpy()
            at = 0
            for kind, one in cells:
                for index, first in one.targets:
                    sums[kind, index, first : first + one.count] += flat[at : at + one.count]
                    at += one.count
        return sums

    @torch.no_grad()
    def cells(self, tensors: Sequence[Tensor | None]) -> Iterator[_Cells]:
        """Begin to take the signed sums: yield the sums of cells, on the device."""
        rows_of: dict[Grid, list[tuple[int, _Piece, Tensor]]] = {}
        for index, tensor in enumerate(tensors):
            grid, run = self._grids[index], self._runs[index]
            for piece in self._pieces[index] if tensor is not None else ():
                assert tensor is not None
                values = tensor[piece.at - run.start : piece.at - run.start + piece.length]
                if piece.length % grid.columns:
                    rows_of.setdefault(grid, []).append((index, piece, values))
                    continue
                first = piece.part * grid.column_parts
                targets = [(index, first + part * grid.column_parts) for part in range(piece.parts)]
                yield _Cells(_signed_sums(values, piece, grid), targets, grid.column_parts)
        for grid, rows in rows_of.items():
            most = max(1, self._piece // grid.columns)
            for first in range(0, len(rows), most):
                yield self._of_part_rows(grid, rows[first : first + most])

    def _of_part_rows(self, grid: Grid, rows: Sequence[tuple[int, _Piece, Tensor]]) -> _Cells:
        """Return the sums of parts of rows: each is copied into a row of zeros."""
        dtype = torch.float64 if rows[0][2].dtype == torch.float64 else torch.float32
        staged = torch.zeros(len(rows), grid.columns, dtype=dtype, device=self._device)
        sources, targets = [], []
        for at, (_, piece, values) in enumerate(rows):
            targets.append(staged[at, piece.column : piece.column + piece.length])
            sources.append(values)
        torch._foreach_copy_(targets, sources)
        firsts = tuple((piece.at - piece.column) % _SIGNS for _, piece, _ in rows)
        staged *= _signs_of_rows(self._device, grid.columns, firsts)
        width = grid.columns // grid.column_parts
        sums = staged.view(len(rows), grid.column_parts, width).sum(dim=2, dtype=torch.float64)
        owners = [(index, piece.part * grid.column_parts) for index, piece, _ in rows]
        return _Cells(sums, owners, grid.column_parts)


def _signed_sums(values: Tensor, piece: _Piece, grid: Grid) -> Tensor:
    """Return [parts, column parts]: the sums of the cells of a piece of whole rows."""
    first = piece.at % _SIGNS
    signed = values * _signs(values.device)[first : first + piece.length]
    rows, width = piece.length // grid.columns // piece.parts, grid.columns // grid.column_parts
    if values.device.type == "cpu" and piece.parts == 1:  # twice as fast there as one sum of two dimensions
        of_columns = signed.view(rows, grid.columns).sum(dim=0)
        return of_columns.view(1, grid.column_parts, width).sum(dim=2, dtype=torch.float64)
    return signed.view(piece.parts, rows, grid.column_parts, width).sum(dim=(1, 3), dtype=torch.float64)


@cache
def _signs(device: torch.device) -> Tensor:
    """Return a random sign for each position, repeated: a piece may begin at any of `_SIGNS` positions."""
    signs = np.random.default_rng(0).integers(2, size=_SIGNS) * 2 - 1
    piece = _PIECE.get(device.type, _DEVICE_PIECE)
    tiled = np.resize(signs, _SIGNS + max(piece, _SIGNS))
    return _constant(torch.from_numpy(tiled.astype(np.float32 if device.type == "cpu" else np.int8)), device)


@lru_cache(maxsize=64)
def _signs_of_rows(device: torch.device, columns: int, firsts: tuple[int, ...]) -> Tensor:
    """Return [rows, columns] int8: the signs of rows that begin at these positions of the signs."""
    signs = _signs(torch.device("cpu")).numpy()
    rows = np.stack([signs[first : first + columns] for first in firsts]).astype(np.int8)
    return torch.from_numpy(rows).to(device)


@dataclass(frozen=True, slots=True)
class _BlockSums:
    """The sums of the blocks of several runs, on a device. blocks: the place of each block in its tensor.
    owners: the run of each block.
    """

    sums: Tensor
    blocks: NDArray[np.int64]
    owners: NDArray[np.int64]

    @classmethod
    def of(cls, runs: Sequence[tuple[int, Tensor]], device: torch.device, piece: int) -> "_BlockSums":
        """Return the sums of runs, each a first element and a flat tensor. piece: elements of 4 bytes that
        an operation reads.
        """
        size = _BLOCK * _WORD
        at_once = max(1, piece * 4 // size)
        sums: list[Tensor] = []
        blocks: list[NDArray[np.int64]] = []
        owners: list[NDArray[np.int64]] = []
        edges: list[tuple[int, int, int, Tensor]] = []  # run, block, first byte in the block, bytes
        for index, (start, tensor) in enumerate(runs):
            raw = tensor.detach().reshape(-1).contiguous()
            width = raw.element_size()
            first, last = start * width, (start + len(raw)) * width
            begin, end = -(-first // size), last // size
            for block in range(begin, end, at_once):
                count = min(at_once, end - block)
                part = raw[(block * size - first) // width : ((block + count) * size - first) // width]
                sums.append((_words(part).view(count, _BLOCK) * _factors(device)).sum(dim=1))
                blocks.append(np.arange(block, block + count))
                owners.append(np.full(count, index))
            inner = (min(last, begin * size), max(min(last, begin * size), end * size))
            for low, high in ((first, inner[0]), (inner[1], last)):
                if low < high:
                    values = raw[(low - first) // width : (high - first) // width].view(torch.uint8)
                    edges.append((index, low // size, low % size, values))
        for at in range(0, len(edges), _STAGED_BLOCKS):
            batch = edges[at : at + _STAGED_BLOCKS]
            staged = torch.zeros(len(batch), size, dtype=torch.uint8, device=device)
            targets = [staged[row, low : low + len(v)] for row, (_, _, low, v) in enumerate(batch)]
            torch._foreach_copy_(targets, [values for *_, values in batch])
            sums.append((staged.view(torch.int64) * _factors(device)).sum(dim=1))
            blocks.append(np.array([block for _, block, _, _ in batch]))
            owners.append(np.array([index for index, *_ in batch]))
        if not sums:
            return cls(torch.zeros(0, dtype=torch.int64), np.zeros(0, np.int64), np.zeros(0, np.int64))
        return cls(torch.cat(sums), np.concatenate(blocks), np.concatenate(owners))

    def digests(self, runs: int) -> NDArray[np.int64]:
        """Return the digests of the runs; reads the sums from the device."""
        digests = np.zeros(runs, np.uint64)
        with np.errstate(over="ignore"):
            np.add.at(digests, self.owners, self.sums.cpu().numpy().view(np.uint64) * _powers(self.blocks))
        return digests.view(np.int64)


def _words(values: Tensor) -> Tensor:
    """Return a contiguous tensor's bytes as 8-byte words."""
    if values.storage_offset() * values.element_size() % _WORD:
        values = values.clone()
    return values.view(torch.int64)


def _powers(exponents: NDArray[np.int64]) -> Words:
    """Return `_BASE` to these powers, modulo 2^64."""
    result = np.ones(len(exponents), np.uint64)
    square = np.uint64(_BASE)
    left = exponents.astype(np.uint64)
    while left.any():
        result = np.where(left & np.uint64(1), result * square, result)
        square = square * square
        left >>= np.uint64(1)
    return result


@cache
def _factors(device: torch.device) -> Tensor:
    """Return one odd number for each word of a block."""
    numbers = torch.randint(-(2**63), 2**63 - 1, (_BLOCK,), generator=torch.Generator().manual_seed(0))
    return _constant(numbers | 1, device)


def _constant(values: Tensor, device: torch.device) -> Tensor:
    """Return values on a device; on a CPU in memory that is not torch's, which counts as the trial's."""
    if device.type != "cpu":
        return values.to(device)
    raw = values.view(torch.uint8).numpy().copy()
    return torch.from_numpy(raw).view(values.dtype)


def prepare(device: torch.device) -> None:
    """Make the constants of a device, which must be there before memory is measured."""
    _factors(device)
    _signs(device)


def digest(tensor: Tensor, start: int = 0) -> int:
    """Return the signed 64-bit digest of a tensor of any shape, dtype and device.

    start: the position of the first element in the flat tensor that `tensor` is a run of.
    """
    piece = _PIECE.get(tensor.device.type, _DEVICE_PIECE)
    return int(_BlockSums.of([(start, tensor)], tensor.device, piece).digests(1)[0])


def signed_sums(tensor: Tensor) -> NDArray[np.float64]:
    """Return the [128] signed sums of a whole tensor of any shape; those of missing cells are 0."""
    sums = RunSums([Run.whole("", tensor.shape)], tensor.device)
    result: NDArray[np.float64] = sums.signed_sums([tensor.detach().reshape(-1)])[0, 0]
    return result
