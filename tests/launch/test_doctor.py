"""The doctor starts real processes, and names every engine."""

import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.analysis.synthetic import trial, write_run
from tests.shared_processes import SharedProcesses
from zbench.launch import doctor
from zbench.launch.doctor import Check
from zbench.launch.process.client import THREAD_VARIABLES


@pytest.fixture(scope="module")
def checks(tmp_path_factory: pytest.TempPathFactory, shared_processes: SharedProcesses) -> dict[str, Check]:
    """Return the report of this machine."""
    with pytest.MonkeyPatch.context() as patch:
        shared_processes.lend_by(patch)
        return {check.name: check for check in doctor.examine(tmp_path_factory.mktemp("results"))}


@pytest.mark.check
def test_two_ranks_meet_and_cpus_that_are_kept_from_us_are_told(checks: dict[str, Check]) -> None:
    assert checks["two ranks"].status == "ok"
    assert checks["two ranks"].text.startswith("trained over gloo and ended within ")
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
    assert checks["bandwidth"].text == "1.0 GB/s measured (2 threads, a = b + s c)"
    assert line.status == ("warn" if problem else "ok")
    assert problem is None or (problem in line.text and "torch's own fused AdamW" in line.text)
    assert "cuda devices" not in checks


CHECKS = ("affinity", "cpu quota", "variables", "load")
MACHINE = {"usable": 8, "cpus": 8, "quota": "max 100000", "load": 0.5, "refusal": None}


@pytest.mark.parametrize(
    ("other", "statuses", "says"),
    [
        ({}, ["ok", None, None, "ok"], "4 usable cores (8 threads)"),
        ({"usable": 6}, ["warn", None, None, "ok"], "3 usable cores (6 threads) of 8: taskset or cgroup"),
        ({"refusal": "EPERM"}, ["warn", None, None, "ok"], "ranks cannot be pinned to them: EPERM"),
        (
            {"quota": "400000 100000"},
            ["ok", "warn", None, "ok"],
            "allows 4 CPUs of 8: steps will be throttled",
        ),
        ({"quota": "damaged"}, ["ok", None, None, "ok"], "8 threads"),
        ({"OMP_NUM_THREADS": "1"}, ["ok", None, "info", "ok"], "OMP_NUM_THREADS: not passed on to trials"),
        ({"load": 1.1}, ["ok", None, None, "warn"], "1.10 in the last minute: figures will be noisy"),
    ],
)
def test_what_slows_or_disturbs_trials_is_told(
    monkeypatch: pytest.MonkeyPatch, other: dict[str, Any], statuses: list[str | None], says: str
) -> None:
    machine = MACHINE | other
    for name in [name for name in os.environ if name.startswith(THREAD_VARIABLES)]:
        monkeypatch.delenv(name)
    for name in machine.keys() - MACHINE.keys():
        monkeypatch.setenv(name, machine[name])
    pairs = [(cpu, cpu + 1) for cpu in range(0, machine["usable"], 2)]
    monkeypatch.setattr(doctor, "this_host", lambda: SimpleNamespace(cores=pairs))
    monkeypatch.setattr(doctor, "pinning_refusal", lambda _: machine["refusal"])
    monkeypatch.setattr(os, "cpu_count", lambda: machine["cpus"])
    monkeypatch.setattr(os, "getloadavg", lambda: (machine["load"], 99.0, 99.0))
    read = Path.read_text
    quota = Path("/sys/fs/cgroup/cpu.max")
    patched = lambda path, *more: machine["quota"] if path == quota else read(path, *more)  # noqa: E731
    monkeypatch.setattr(Path, "read_text", patched)
    checks = {check.name: check for check in doctor._threads()}
    assert [checks[name].status if name in checks else None for name in CHECKS] == statuses
    assert says in "\n".join(check.text for check in checks.values())


@pytest.mark.parametrize(("files", "status"), [(1023, "warn"), (1024, "ok")])
def test_results_are_whole_and_have_room_or_the_file_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, files: int, status: str
) -> None:
    free = 1 << 30
    monkeypatch.setattr(doctor.shutil, "disk_usage", lambda _: SimpleNamespace(free=free))
    monkeypatch.setattr(doctor.resource, "getrlimit", lambda _: (files, files))
    results = tmp_path / "results"
    told = [(check.name, check.status) for check in doctor._surroundings(results / "deeper")]
    assert told == [("results", "ok"), ("locks", "ok"), ("open files", status)]
    run = write_run(results / "example" / "20260101-000000-aaaa", trial([0.1]))
    (sound,) = (check for check in doctor._surroundings(results) if check.name == "files")
    assert (sound.status, sound.text.split()[0]) == ("ok", "2")
    (run / "environment.json").write_text("{")
    free -= 1
    told = [(check.name, check.status) for check in doctor._surroundings(results)]
    assert told == [("results", "warn"), ("locks", "ok"), ("files", "warn"), ("open files", status)]
    assert next(results.iterdir()).name == "example", "nothing is left of the tries"
