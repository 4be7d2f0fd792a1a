"""Peak rates of a device: FLOP/s of the data sheet, measured matrix FLOP/s and memory bandwidth."""

from collections.abc import Callable

import torch

from zbench import clocks
from zbench.measure.clock import synchronize
from zbench.spec.cards import card_called

_SIDE = {"cpu": 768, "cuda": 8192}
_ELEMENTS = 1 << 25  # 128 MiB of float32: far more than any cache
_PASSES = 4


def peak_flops(device: torch.device, dtype: str) -> float | None:
    """Return the FLOP/s of the data sheet for this device and dtype; None if the card is not known by exactly
    this name, or has no such products.

    float32 counts with TF32. Without TF32 the matrix products of a GPU reach a small share of this peak only.
    """
    if device.type != "cuda":
        return None
    card = card_called(torch.cuda.get_device_name(device))
    return None if card is None else card.peak(dtype)


def utilization(tflops: float | None, device: torch.device, dtype: str, devices: int) -> float | None:
    """Return the model FLOPs utilization (MFU, a fraction) of `devices` equal devices; None if unknown.

    tflops: model TFLOP/s of all ranks together.
    """
    peak = peak_flops(device, dtype)
    return None if tflops is None or peak is None else tflops * 1e12 / (peak * devices)


def matrix_flops(device: torch.device) -> float:
    """Measure and return the best FLOP/s of _PASSES large float32 matrix products."""
    side = _SIDE[device.type]
    a, b = torch.randn(side, side, device=device), torch.randn(side, side, device=device)
    return 2.0 * side**3 / _least_seconds(lambda: torch.mm(a, b), device)


def stream_bandwidth(device: torch.device) -> float:
    """Measure and return the best bytes/s of `a = b + s c` on large arrays: two reads, one write."""
    a, b, c = (torch.ones(_ELEMENTS, device=device) for _ in range(3))
    return 3.0 * a.nbytes / _least_seconds(lambda: torch.add(b, c, alpha=2.0, out=a), device)


def _least_seconds(work: Callable[[], object], device: torch.device) -> float:
    seconds = []
    for _ in range(_PASSES):
        began = clocks.perf_counter()
        work()
        synchronize(device)
        seconds.append(clocks.perf_counter() - began)
    return min(seconds)
