"""The environment of a run: machine, software, invocation; and a fingerprint of comparable machines."""

import hashlib
import json
import os
import platform
import socket
import subprocess
import time
from collections import Counter
from collections.abc import Mapping
from importlib import metadata
from pathlib import Path
from typing import Any

import psutil

from zbench import __version__, git
from zbench.errors import UsageError
from zbench.gpus import all_gpus, power_limits

_ISA = ("avx2", "fma", "f16c", "avx512f", "avx512bw", "avx512_bf16", "amx_bf16", "asimd", "sve", "bf16")
_PACKAGES = ("torch", "numpy", "optuna", "deepspeed", "transformers")
_DEVICE_VARIABLES = (
    "PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF", "NCCL_", "TORCH_NCCL_", "CUDA_", "CUBLAS_",
    "NVIDIA_TF32_OVERRIDE", "TORCH_ALLOW_TF32_CUBLAS_OVERRIDE",
)  # fmt: skip
_GIB = 1 << 30


def collect(**invocation: Any) -> dict[str, Any]:
    """Return the contents of environment.json; `invocation` is stored unchanged. Imports no torch."""
    machine = machine_facts()
    return {
        "fingerprint": fingerprint(machine),
        "machine": machine,
        "system": {"hostname": socket.gethostname(), "kernel": platform.release(), "os": platform.system()},
        "software": software_facts(),
        "device": device_settings() if machine["gpus"] else {},
        "git": _git(),
        "branch": _branch(),
        "started": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
        "invocation": invocation,
    }


def machine_facts() -> dict[str, Any]:
    """Return facts that are equal in all runs on one machine, and differ between unlike machines."""
    return {
        "architecture": platform.machine(),
        "cpu": cpu_model(),
        "cores": psutil.cpu_count(logical=False) or os.cpu_count(),
        "threads": os.cpu_count(),
        "usable_threads": len(os.sched_getaffinity(0)),
        "isa": [flag for flag in _ISA if flag in _cpu_flags()],
        "memory_gib": round(psutil.virtual_memory().total / _GIB),
        "gpus": [gpu.model for gpu in all_gpus()],
    }


def device_settings() -> dict[str, Any]:
    """Return what affects a GPU's speed and memory besides its model: driver, power limits, variables."""
    driver = Path("/proc/driver/nvidia/version")
    return {
        "driver": driver.read_text().partition("\n")[0] if driver.exists() else None,
        "power_limits": power_limits(),
        "variables": {k: v for k, v in sorted(os.environ.items()) if k.startswith(_DEVICE_VARIABLES)},
    }


def machine_name() -> str:
    """Return this machine's kind in words: processor, cores and GPUs, as a job scheduler may choose it."""
    gpus = Counter(gpu.model for gpu in all_gpus())
    parts = [cpu_model(), f"{psutil.cpu_count(logical=False) or os.cpu_count()} cores"]
    return ", ".join([*parts, *(f"{count} x {name}" for name, count in sorted(gpus.items()))])


def software_facts() -> dict[str, str | None]:
    """Return versions, of packages without importing them."""
    versions = {name: _version(name) for name in _PACKAGES}
    return {"python": platform.python_version(), "zbench": __version__, **versions}


def fingerprint(machine: dict[str, Any]) -> str:
    """Return 12 hex digits that are equal for machines whose timings may be compared.

    Software is left out on purpose: the difference between two versions is what people compare.
    """
    canonical = json.dumps(machine, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(canonical.encode()).hexdigest()[:12]


def differences(before: Mapping[str, Any], now: Mapping[str, Any], *sections: str) -> list[str]:
    """Return the differences of two environments in `sections`, such as `software: torch was 2.12, is 2.13`.

    A key that one of them lacks is not compared: an older version did not record it.
    """
    pairs = ((part, before.get(part) or {}, now.get(part) or {}) for part in sections)
    return [
        f"{part}: {key} was {was[key]}, is {current[key]}"
        for part, was, current in pairs
        for key in was
        if key in current and was[key] != current[key]
    ]


def cpu_model() -> str:
    """Return the processor's name as the kernel gives it."""
    for line in _cpuinfo():
        if line.startswith(("model name", "Model", "Hardware")):
            return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def _cpu_flags() -> set[str]:
    line = next((line for line in _cpuinfo() if line.startswith(("flags", "Features"))), "")
    return set(line.partition(":")[2].split())


def _cpuinfo() -> list[str]:
    try:
        return Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return []


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def _git() -> dict[str, Any] | None:
    """Return the working directory's commit and whether it is changed; None outside a repository."""
    try:
        commit = _output("rev-parse", "HEAD")
        changed = _output("status", "--porcelain", "--untracked-files=no", "--ignore-submodules=dirty")
        return {"commit": commit, "dirty": bool(changed)}
    except (UsageError, subprocess.SubprocessError):
        return None


def _branch() -> str | None:
    """Return the git branch: what a workflow run checks out for a pull request is on none by itself."""
    try:
        return os.environ.get("GITHUB_HEAD_REF") or _output("branch", "--show-current") or None
    except (UsageError, subprocess.SubprocessError):
        return None


def _output(*arguments: str) -> str:
    done = git.call(*arguments, seconds=5)
    done.check_returncode()
    return done.stdout.decode(errors="replace").strip()
