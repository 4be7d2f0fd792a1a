# ruff: noqa: N802 - the names are pynvml's
"""A stand-in for NVML (the module pynvml): a driver with the GPUs of a test."""

import sys
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest

from zbench import gpus


@dataclass
class Device:
    """A GPU, or a slice of one. held: process id -> bytes."""

    uuid: str
    free: int = 80 << 30
    address: str = "00000000:07:00.0"
    model: str = "NVIDIA H100 80GB HBM3"
    slices: list["Device"] = field(default_factory=list)
    held: dict[int, int] = field(default_factory=dict)


class Driver:
    """What pynvml offers of it, by the same names. Numbers and handles are those of real calls."""

    NVML_DEVICE_MIG_ENABLE = 1
    NVMLError = type("NVMLError", (Exception,), {})

    def __init__(self, *devices: Device) -> None:
        self._devices = devices

    def nvmlInit(self) -> None:
        """Do nothing."""

    def nvmlDeviceGetCount(self) -> int:
        return len(self._devices)

    def nvmlDeviceGetHandleByIndex(self, index: int) -> Device:
        return self._devices[index]

    def nvmlDeviceGetHandleByUUID(self, uuid: str) -> Device:
        everything = [one for device in self._devices for one in (device, *device.slices)]
        return self._one([one for one in everything if one.uuid == uuid])

    def nvmlDeviceGetMemoryInfo(self, device: Device) -> Any:
        if device.slices:
            raise self.NVMLError("not of a GPU that is sliced")
        return SimpleNamespace(free=device.free)

    def nvmlDeviceGetPciInfo(self, device: Device) -> Any:
        return SimpleNamespace(busId=device.address.encode())

    def nvmlDeviceGetName(self, device: Device) -> str:
        return device.model

    def nvmlDeviceGetUUID(self, device: Device) -> bytes:
        return device.uuid.encode()

    def nvmlDeviceGetEnforcedPowerLimit(self, device: Device) -> int:
        return 700_000

    def nvmlDeviceGetMigMode(self, device: Device) -> tuple[int, int]:
        return (int(bool(device.slices)), 0)

    def nvmlDeviceGetMaxMigDeviceCount(self, device: Device) -> int:
        return 7

    def nvmlDeviceGetMigDeviceHandleByIndex(self, device: Device, index: int) -> Device:
        return self._one(device.slices[index : index + 1])

    def nvmlDeviceGetComputeRunningProcesses(self, device: Device) -> list[Any]:
        return [SimpleNamespace(pid=pid, usedGpuMemory=held) for pid, held in device.held.items()]

    def _one(self, devices: list[Device]) -> Device:
        if not devices:
            raise self.NVMLError("not found")
        return devices[0]


def install(monkeypatch: pytest.MonkeyPatch, *devices: Device, driver: bool = True) -> None:
    """Let this machine have these GPUs, all of them visible. driver: whether NVML is there."""
    monkeypatch.setitem(sys.modules, "pynvml", Driver(*devices) if driver else None)
    monkeypatch.setattr(gpus, "load_nvml", gpus.load_nvml.__wrapped__)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
