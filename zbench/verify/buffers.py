"""Buffers: the state that `forward` keeps, such as running statistics, of each rank and in each step."""

import statistics
from collections.abc import Mapping

import torch
from torch import Tensor, nn

from zbench.verify.diagnosis import Finding
from zbench.verify.distance import Healthy, distances_of, errors_of
from zbench.verify.limits import BUFFERS_UP_TO, GROSS_SHARE, STILL_STEPS, STILL_WITHIN
from zbench.verify.noise import least_shares
from zbench.verify.replay import Adam
from zbench.verify.sums import Run, RunSums
from zbench.verify.trajectory import Reference


class BufferLog:
    """Notes the digests of a model's floating-point buffers, before the first step and after each."""

    def __init__(self) -> None:
        self._digests: dict[str, list[int]] = {}
        self._sums: dict[tuple[torch.device, tuple[Run, ...]], RunSums] = {}

    def note(self, model: nn.Module) -> None:
        """Take the digests; one read by the host for each device."""
        of_device: dict[torch.device, dict[str, Tensor]] = {}
        for name, buffer in _floating(model).items():
            of_device.setdefault(buffer.device, {})[name] = buffer.reshape(-1)
        for device, buffers in of_device.items():
            runs = tuple(Run.whole(name, value.shape) for name, value in buffers.items())
            sums = self._sums.setdefault((device, runs), RunSums(runs, device))
            for name, digest in zip(buffers, sums.digests(list(buffers.values())).tolist(), strict=True):
                self._digests.setdefault(name, []).append(digest)

    def still_beside(self, moves: Mapping[str, Tensor], rank: int) -> list[str]:
        """Return a buffer, once for each step in which it did not change, though the reference's changed by
        more than rounding can hide: the buffer of this rank and that of rank 0.

        moves: `BufferMoves.table` of all ranks.
        """
        for name, values in self._digests.items():
            of_sources = [moves.get(f"{source}/{name}") for source in dict.fromkeys((rank, 0))]
            sources = [source for source in of_sources if source is not None]
            if len(sources) < len(of_sources) or any(len(one) != len(values) - 1 for one in sources):
                continue
            changed = (torch.stack(sources) > STILL_WITHIN).all(dim=0)
            steps = int((changed & (torch.tensor(values).diff() == 0)).sum())
            if steps >= STILL_STEPS:
                return [name] * steps
        return []


class BufferMoves:
    """Notes by how many roundings the floating-point buffers of a reference's rank change in each step."""

    def __init__(self) -> None:
        self._before: dict[str, Tensor] = {}
        self._moves: dict[str, list[float]] = {}

    def note(self, model: nn.Module) -> None:
        """Compare the buffers with those of the call before."""
        for name, buffer in _floating(model).items():
            old, new = self._before.get(name), buffer.double().cpu()
            if old is not None:
                rounding = torch.finfo(buffer.dtype).eps * torch.maximum(old.abs(), new.abs())
                share = ((new - old).abs() / rounding).nan_to_num(0.0)
                self._moves.setdefault(name, []).append(float(share.max()) if share.numel() else 0.0)
            self._before[name] = new

    def table(self, rank: int) -> dict[str, Tensor]:
        """Return the largest change [S] float64 of any element, in units of its dtype's rounding, by
        `RANK/NAME`.
        """
        return {f"{rank}/{name}": torch.tensor(v, dtype=torch.float64) for name, v in self._moves.items()}


def _floating(model: nn.Module) -> dict[str, Tensor]:
    """Return the floating-point buffers that are whole on this rank."""
    buffers = {name: buffer.detach() for name, buffer in model.named_buffers()}
    return {n: b for n, b in buffers.items() if type(b) is Tensor and b.is_floating_point()}


def judge_buffers(
    model: nn.Module, reference: Reference, adams: Mapping[str, Adam], rank: int, log: BufferLog
) -> list[Finding]:
    """Return the faults of one rank's buffers: they are its own, or rank 0's if an engine broadcasts them.

    log: of the rank's buffers in the trial.
    """
    still = log.still_beside(reference.buffer_moves, rank)
    if still:
        return [Finding(1.0, f"buffers of rank {rank} that do not change in {len(still)} steps ({still[0]})")]
    buffers = {name: buffer.detach().cpu() for name, buffer in model.named_buffers()}
    if not buffers:
        return []
    least = statistics.median(least_shares(reference, adams).values() or [0.0])
    of_sources = [_stray_buffers(buffers, reference, least, source) for source in dict.fromkeys((rank, 0))]
    strays = [name for name in buffers if all(name in strays for strays in of_sources)]
    more = f" and {len(strays) - 1} more" if len(strays) > 1 else ""
    is_rounded = all(buffers[name].is_floating_point() for name in strays)
    text = f"buffers of rank {rank} ({strays[0]}{more})" if strays else ""
    return [Finding(1.0, text, by_distance=is_rounded)] if strays else []


def _stray_buffers(buffers: Mapping[str, Tensor], reference: Reference, least: float, rank: int) -> set[str]:
    """Return the buffers that are not those of the reference's rank, up to rounding.

    least: the share of a buffer's size from which on an error counts. Without a float64 run a buffer may be
    off by a quarter of its size.
    """
    plain, true = (
        {name: kept[f"{rank}/{name}"] for name in buffers if f"{rank}/{name}" in kept}
        for kept in (reference.buffers, reference.true_buffers)
    )
    strays = {name for name, value in plain.items() if not _is_like(buffers[name], value)}
    rounded = {
        name: value
        for name, value in plain.items()
        if name not in strays and value.is_floating_point() and value.numel() and bool(value.isfinite().all())
    }
    for name in rounded.keys() - true.keys():
        difference = (buffers[name].double() - rounded[name].double()).norm()
        strays |= {name} if float(difference) > GROSS_SHARE * float(rounded[name].double().norm()) else set()
    truth = {name: true[name].double() for name in rounded.keys() & true.keys()}
    if truth:
        sizes = {name: float(value.square().mean().sqrt()) for name, value in truth.items()}
        steps = len(reference.plain.digests)
        healthy = Healthy(sizes, counts_from=dict.fromkeys(sizes, least), roundings=steps)
        values, own = ({name: run[name].float() for name in truth} for run in (buffers, plain))
        errors = errors_of(distances_of(values, own, truth), list(truth), healthy)
        strays |= {name for name, ratio in errors.each.items() if ratio > BUFFERS_UP_TO}
    return strays


def _is_like(value: Tensor, plain: Tensor) -> bool:
    """Whether a buffer has the shape and kind of the reference's, the same integers, and is as finite."""
    if value.shape != plain.shape or value.is_floating_point() != plain.is_floating_point():
        return False
    if not plain.is_floating_point():
        return torch.equal(value, plain.to(value.dtype))
    return bool(plain.isfinite().all()) or bool((value.isfinite() == plain.isfinite()).all())
