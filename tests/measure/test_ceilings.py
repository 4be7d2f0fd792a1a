"""What a device does at best: its maker's figures, and rates by the quickest of a few passes."""

import itertools

import pytest
import torch

from zbench.measure import ceilings

CPU, CUDA = torch.device("cpu"), torch.device("cuda")


@pytest.mark.parametrize(
    ("name", "half", "single"),
    [
        ("NVIDIA H200", 989e12, 494e12),
        ("NVIDIA H100 PCIe", 756e12, 378e12),
        ("NVIDIA L40S", 362e12, 183e12),
        ("NVIDIA L4", 121e12, 60e12),
        ("NVIDIA L40", 181e12, 90.5e12),
        ("NVIDIA A40", 149.7e12, 74.8e12),
        ("NVIDIA RTX A6000", 154.8e12, 77.4e12),
        ("NVIDIA GeForce RTX 4090", 165.2e12, 82.6e12),
        ("NVIDIA B200", 2250e12, 1125e12),
        ("AMD Instinct MI300X", 1307e12, 653.7e12),
        ("NVIDIA A100-SXM4-40GB", 312e12, 156e12),
        ("NVIDIA A10G", None, None),
        ("NVIDIA RTX A1000", None, None),
        ("NVIDIA H100 80GB HBM3 MIG 1g.10gb", None, None),
        ("another", None, None),
    ],
)
def test_a_gpus_peak_is_its_makers(
    name: str, half: float | None, single: float | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda _: name)
    assert ceilings.peak_flops(CUDA, "bfloat16") == ceilings.peak_flops(CUDA, "float16") == half
    assert ceilings.peak_flops(CUDA, "float32") == single
    share = ceilings.utilization(8.0, CUDA, "bfloat16", 4)
    assert share == (None if half is None else 8.0 * 1e12 / (half * 4))
    assert ceilings.utilization(None, CUDA, "bfloat16", 4) is None
    assert ceilings.peak_flops(CPU, "float32") is None


def test_a_card_without_bfloat16_has_no_peak_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda _: "Tesla V100-SXM2-16GB")
    peaks = [ceilings.peak_flops(CUDA, dtype) for dtype in ("float16", "float32", "bfloat16")]
    assert peaks == [125e12, 15.7e12, None]


def test_a_rate_is_that_of_the_quickest_of_four_passes(monkeypatch: pytest.MonkeyPatch) -> None:
    passes = [8.0, 1.75, 4.0, 6.0]
    now = itertools.accumulate(step for seconds in [*passes, *passes, 1.0] for step in (0.0, seconds))
    monkeypatch.setattr(ceilings.clocks, "perf_counter", lambda: next(now))
    assert ceilings.matrix_flops(CPU) == 2 * 768**3 / 1.75
    assert ceilings.stream_bandwidth(CPU) == 3 * (1 << 27) / 1.75
