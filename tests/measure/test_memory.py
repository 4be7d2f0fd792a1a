"""Peak memory to the byte, against tensors of known size, and an honest fallback."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from zbench.measure.memory import PeakMeter, StepMemory, choose_meter, largest, self_test
from zbench.record.record import MemoryPeaks


def measured(*arguments: str) -> dict[str, Any]:
    script = Path(__file__).with_name("memory_cases.py")
    done = subprocess.run([sys.executable, script, *arguments], capture_output=True, text=True, check=True)
    figures: dict[str, Any] = json.loads(done.stdout)
    return figures


@pytest.fixture(scope="module")
def exact() -> dict[str, Any]:
    return measured()


@pytest.mark.parametrize(
    ("case", "expected"),
    [
        ("exact", True),
        ("warning", None),
        ("garbage from before", 0),
        ("temporary", 5_001_000),
        ("after reset", 1000),
        ("view", 1000 + (4 << 20)),  # a view keeps its whole storage
        ("another thread", 3_001_017),
    ],
)
def test_peaks_are_exact_to_the_byte(exact: dict[str, Any], case: str, expected: object) -> None:
    assert exact[case] == expected


def test_a_steps_peak_leaves_out_memory_between_steps(exact: dict[str, Any]) -> None:
    peak = 1000 + (1 << 22)
    device = peak - 400
    assert exact["steps"] == [
        device,
        400,
        {"parameters": 600, "host_moments": 400, "activations": device - 600},
    ]
    assert exact["rss"] > peak


def test_without_the_shim_figures_are_marked_as_estimates() -> None:
    estimated = measured("late")
    assert not estimated["exact"]
    assert "torch was imported before" in estimated["warning"]
    assert 0 <= estimated["temporary"] < estimated["rss"], "what the process held before does not count"


def test_a_shim_that_sees_nothing_fails_its_self_test(monkeypatch: pytest.MonkeyPatch) -> None:
    names = ("live_bytes", "peak_bytes", "reset_peak")
    blind = SimpleNamespace(**{f"zbench_memory_{name}": lambda: 0 for name in names})
    told = "of 1000003 bytes it counted 0 live, 0 at the peak and 0 after release"
    assert self_test(blind) == told
    monkeypatch.setattr("zbench.measure.memory.SHIM", blind)
    found, warning = choose_meter(torch.device("cpu"))
    assert (found.exact, told in (warning or "")) == (False, True)


def meter(peak: int, live: Callable[[], int] = lambda: 0) -> PeakMeter:
    return PeakMeter(lambda: None, lambda: peak, live, exact=True)


def test_on_cuda_host_memory_is_no_part_of_the_peak(monkeypatch: pytest.MonkeyPatch) -> None:
    steps = StepMemory(meter(1000), torch.device("cuda"))
    reserved = iter([4096, 2048])
    monkeypatch.setattr(torch.cuda, "max_memory_reserved", lambda device: next(reserved))
    for _ in range(2):
        steps.begin()
        steps.end()
    memory = steps.summary({"parameters": 300, "host_moments": 5000})
    assert (memory.peak_device_bytes, memory.peak_host_bytes) == (1000, 5000)
    assert memory.peak_reserved_bytes == 4096
    assert memory.by_category["activations"] == 700
    assert steps.summary({"parameters": 1300}).by_category["activations"] == 0


@pytest.mark.parametrize(("held", "context"), [(5000, 904), (4000, 0), (None, None)])
def test_beside_the_allocator_a_process_holds_what_the_driver_says(
    monkeypatch: pytest.MonkeyPatch, held: int | None, context: int | None
) -> None:
    """Of another process, or of none where the driver numbers them otherwise, nothing is known."""
    told = {os.getpid() + 1: 9000} | ({} if held is None else {os.getpid(): held})
    for there in (told, None) if held is None else (told,):
        monkeypatch.setattr("zbench.measure.memory.bytes_by_process", lambda there=there: there)
        monkeypatch.setattr(torch.cuda, "memory_reserved", lambda device: 4096)
        memory = StepMemory(meter(1000), torch.device("cuda")).summary({})
        assert memory.context_bytes == context


def test_a_gpus_meter_is_exact_and_asks_its_own_allocator(monkeypatch: pytest.MonkeyPatch) -> None:
    second = torch.device("cuda", 1)
    figures = {"reset_peak_memory_stats": None, "max_memory_allocated": 900, "memory_allocated": 200}
    for name, figure in figures.items():
        monkeypatch.setattr(torch.cuda, name, lambda device, figure=figure: figure if device == second else 0)
    found, warning = choose_meter(second)
    assert (found.peak(), found.live(), found.exact, warning) == (700, 0, True, None)


def test_over_ranks_each_figure_is_the_largest() -> None:
    one = MemoryPeaks(10, 4, 100, {"parameters": 10}, peak_reserved_bytes=64, context_bytes=5)
    other = MemoryPeaks(20, 3, 90, {"parameters": 20}, False, peak_reserved_bytes=32, context_bytes=7)
    assert largest([one, other]) == MemoryPeaks(20, 4, 100, {"parameters": 20}, False, 64, 7)
    unknown = MemoryPeaks(None, None, None)
    assert largest([unknown, MemoryPeaks(1, 0, 0)]) == MemoryPeaks(1, 0, 0)
