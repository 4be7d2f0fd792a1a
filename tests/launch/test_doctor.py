"""The doctor starts real processes, and names every engine."""

import os

import pytest

from tests.shared_processes import SharedProcesses
from zbench.launch import doctor
from zbench.launch.doctor import Check


@pytest.fixture(scope="module")
def checks(tmp_path_factory: pytest.TempPathFactory, shared_processes: SharedProcesses) -> dict[str, Check]:
    """Return the report of this machine."""
    with pytest.MonkeyPatch.context() as patch:
        shared_processes.lend_by(patch)
        return {check.name: check for check in doctor.examine(tmp_path_factory.mktemp("results"))}


def test_two_ranks_meet_and_cpus_that_are_kept_from_us_are_told(checks: dict[str, Check]) -> None:
    assert checks["two ranks"].status == "ok"
    has_all = len(os.sched_getaffinity(0)) == os.cpu_count()
    assert checks["affinity"].status == ("ok" if has_all else "warn")


def test_kernels_engines_and_bandwidth_are_named(checks: dict[str, Check]) -> None:
    assert checks["native kernels"].status == "ok"
    assert "scalar" in checks["native kernels"].text
    assert checks["engine builtin"].text == "usable"
    assert {f"engine {name}" for name in ("ddp", "zero_redundancy", "fsdp2", "deepspeed")} <= set(checks)
    assert float(checks["bandwidth"].text.split()[0]) > 0.1
    assert "exact" in checks["memory meter"].text
    assert checks["instructions"].text.startswith(("counted", "not counted: "))


@pytest.mark.parametrize("problem", [None, "NVRTC is not beside torch"])
def test_each_gpu_says_whether_every_kernel_ran(problem: str | None) -> None:
    gpu = {"name": "H100", "memory_bytes": 80 << 30, "kernels_problem": problem}
    facts = {
        "torch": {"version": "2.13.0", "threads": 2, "backends": ["nccl"]},
        "isas": {"in use": "avx2", "available": ["scalar"]}, "cuda_problem": problem,
        "bandwidth": {"bytes_per_s": 1e9, "threads": 2},
        "memory_shim": None, "instructions": None, "engines": {}, "cuda": [gpu],
    }  # fmt: skip
    checks = {check.name: check for check in doctor._facts_checks(facts)}
    line = checks["cuda:0"]
    assert line.text.startswith("H100 (80 GiB); ")
    assert line.status == ("warn" if problem else "ok")
    assert problem is None or (problem in line.text and "torch's own fused AdamW" in line.text)
    assert "cuda devices" not in checks
