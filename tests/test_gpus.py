"""Which GPUs there are, and which of them this process may use."""

from pathlib import Path

import pytest

from tests.nvml import Device, install
from zbench import gpus
from zbench.gpus import all_gpus, bytes_by_process, free_bytes, power_limits, visible_gpus

GIB = 1 << 30


def test_a_container_without_the_drivers_files_has_its_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpus, "LISTED", Path("/nowhere"))
    install(monkeypatch, Device("GPU-a"), Device("GPU-b", address="00000000:0F:00.0"))
    assert [(gpu.uuid, gpu.address) for gpu in all_gpus()] == [
        ("GPU-a", "00000000:07:00.0"),
        ("GPU-b", "00000000:0F:00.0"),
    ]
    assert power_limits() == ["700.00 W", "700.00 W"]


def test_without_nvml_the_drivers_files_name_them(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for place, model in (("0000:0f:00.0", "Example : H100"), ("0000:07:00.0", "A100")):
        (tmp_path / place).mkdir()
        text = f"Model: \t\t {model}\nIRQ: \t\t 7\nGPU UUID: \t GPU-{place}\nBus Location: \t {place}\n"
        (tmp_path / place / "information").write_text(text)
    monkeypatch.setattr(gpus, "LISTED", tmp_path)
    install(monkeypatch, driver=False)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1")
    assert [gpu.model for gpu in all_gpus()] == ["A100", "Example : H100"]
    assert [gpu.address for gpu in visible_gpus()] == ["0000:0f:00.0"]
    assert (free_bytes(), bytes_by_process(), power_limits()) == (0, None, [])


@pytest.mark.parametrize(
    ("visible", "expected"),
    [
        ("2, 0,", ["GPU-b2", "GPU-a0"]),
        ("GPU-a,GPU-b2", ["GPU-a0", "GPU-b2"]),
        ("GPU-b", []),  # two begin so
        ("0,-1,1", ["GPU-a0"]),  # what follows one that is none is not seen
        ("", []),
    ],
)
def test_what_is_visible_is_what_cuda_would_see(
    monkeypatch: pytest.MonkeyPatch, visible: str, expected: list[str]
) -> None:
    install(monkeypatch, Device("GPU-a0"), Device("GPU-b1"), Device("GPU-b2"))
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    assert [gpu.uuid for gpu in visible_gpus()] == expected


def test_room_is_that_of_the_visible_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another GPU of the host may be full with another user's work."""
    install(monkeypatch, Device("GPU-a", free=GIB, held={5: 79 * GIB}), Device("GPU-b", free=70 * GIB))
    assert free_bytes() == GIB
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "GPU-b")
    assert free_bytes() == 70 * GIB
    assert bytes_by_process() == {}
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    assert bytes_by_process() == {5: 79 * GIB}


def test_a_slice_has_memory_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    slices = [Device(f"MIG-{number}", free=number * GIB, model="H100 MIG 1g.10gb") for number in (9, 8)]
    install(monkeypatch, Device("GPU-a", slices=slices), Device("GPU-b", free=20 * GIB))
    assert [(gpu.uuid, gpu.is_slice) for gpu in all_gpus()] == [
        ("MIG-9", True),
        ("MIG-8", True),
        ("GPU-b", False),
    ]
    assert free_bytes() == 8 * GIB
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "MIG-9")
    assert free_bytes() == 9 * GIB
