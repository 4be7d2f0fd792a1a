"""The fingerprint follows the machine and nothing else."""

import json
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from tests.nvml import Device, install
from zbench.gpus import Gpu
from zbench.record import environment


def test_fingerprint_is_that_of_the_machine():
    machine = environment.machine_facts()
    assert environment.fingerprint(machine) == environment.fingerprint(json.loads(json.dumps(machine)))
    assert environment.fingerprint(machine | {"cpu": "another"}) != environment.fingerprint(machine)
    assert environment.fingerprint(dict(reversed(machine.items()))) == environment.fingerprint(machine)
    assert environment.fingerprint({"cpu": "Example", "cores": 2, "gpus": ["A", "B"]}) == "e398db2da1f5"


def test_only_what_both_environments_say_is_compared():
    before = {"machine": {"cpu": "A", "cores": 2}, "software": {"torch": "1"}, "git": None}
    now = {
        "machine": {"cpu": "B", "cores": 2, "gpus": []},
        "software": {"torch": "2"},
        "git": {"commit": "x"},
    }
    assert environment.differences(before, now, "machine", "git") == ["machine: cpu was A, is B"]
    assert environment.differences(before, now, "software") == ["software: torch was 1, is 2"]
    assert environment.differences({}, now, "machine", "software", "git") == []


def test_collected_facts_are_json_and_name_versions():
    facts = json.loads(json.dumps(environment.collect(command=["sweep"])))
    assert facts["invocation"] == {"command": ["sweep"]}
    assert facts["software"]["torch"]
    assert facts["machine"]["cores"] >= 1
    assert facts["fingerprint"] == environment.fingerprint(facts["machine"])


def test_outside_a_repository_there_is_no_commit(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path))
    assert environment.collect()["git"] is None


def test_a_run_names_its_commit_and_branch(tmp_path, monkeypatch):
    def git(*words):
        config = ("-c", "user.name=a", "-c", "user.email=a@b", "-c", "commit.gpgsign=false")
        return subprocess.run(["git", *config, *words], check=True, capture_output=True, text=True).stdout

    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("GITHUB_HEAD_REF", raising=False)
    git("init", "-b", "work")
    (tmp_path / "file").write_text("before")
    git("add", "file")
    git("commit", "-m", "first")
    commit = git("rev-parse", "HEAD").strip()
    (tmp_path / "untracked").touch()
    os.utime(tmp_path / "file", (0, 0))
    index = (tmp_path / ".git" / "index").read_bytes()
    facts = environment.collect()
    assert (tmp_path / ".git" / "index").read_bytes() == index, "nothing is written, so nothing locked"
    assert (facts["git"], facts["branch"]) == ({"commit": commit, "dirty": False}, "work")
    (tmp_path / "file").write_text("after")
    monkeypatch.setenv("GITHUB_HEAD_REF", "patch")
    facts = environment.collect()
    assert (facts["git"], facts["branch"]) == ({"commit": commit, "dirty": True}, "patch")
    monkeypatch.delenv("GITHUB_HEAD_REF")
    git("checkout", "--detach")
    assert environment.collect()["branch"] is None


def test_torch_is_not_imported():
    code = "import sys, zbench.record.environment as e; e.collect(); sys.exit('torch' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_the_processor_is_named_as_the_kernel_names_it(monkeypatch, tmp_path):
    cpuinfo = tmp_path / "cpuinfo"
    cpuinfo.write_text("processor : 0\nmodel name\t: Example : 9000\nflags\t\t: fpu avx2 sse\n")
    monkeypatch.setattr(environment, "Path", lambda place: cpuinfo)
    assert environment.cpu_model() == "Example : 9000"
    assert environment.machine_facts()["isa"] == ["avx2"]
    cpuinfo.unlink()
    assert environment.cpu_model()
    assert environment.machine_facts()["isa"] == []


@pytest.mark.parametrize(("processor", "name"), [("Example", "Example"), ("", "riscv64")])
def test_where_the_kernel_names_no_processor_the_platform_does(monkeypatch, processor, name):
    monkeypatch.setattr(environment, "Path", lambda place: Path("/nowhere"))
    monkeypatch.setattr(environment.platform, "processor", lambda: processor)
    monkeypatch.setattr(environment.platform, "machine", lambda: "riscv64")
    assert environment.cpu_model() == name


def test_a_machine_has_a_name_of_processor_cores_and_gpus(monkeypatch):
    monkeypatch.setattr(environment, "cpu_model", lambda: "Example 9000")
    monkeypatch.setattr(environment.psutil, "cpu_count", lambda logical=True: 99 if logical else 48)
    assert environment.machine_name() == "Example 9000, 48 cores"
    monkeypatch.setattr(environment, "all_gpus", lambda: [Gpu(model) for model in ("H100", "A100", "H100")])
    assert environment.machine_name() == "Example 9000, 48 cores, 1 x A100, 2 x H100"


@pytest.mark.parametrize(("physical", "cores"), [(3, 3), (None, os.cpu_count())])
def test_a_machine_has_physical_cores_usable_threads_and_whole_gibibytes(monkeypatch, physical, cores):
    count = lambda logical=True: 99 if logical else physical  # noqa: E731
    monkeypatch.setattr(environment.psutil, "cpu_count", count)
    monkeypatch.setattr(environment.os, "sched_getaffinity", lambda pid: set(range(99 if pid else 3)))
    memory = SimpleNamespace(total=48 * 2**30 - 1000)
    monkeypatch.setattr(environment.psutil, "virtual_memory", lambda: memory)
    facts = environment.machine_facts()
    assert (facts["cores"], facts["usable_threads"], facts["memory_gib"]) == (cores, 3, 48)


def test_a_gpu_is_noted_with_its_driver_power_and_variables(monkeypatch, tmp_path):
    (tmp_path / "version").write_text("NVRM version: NVIDIA 580.1\nGCC version: 12\n")
    monkeypatch.setattr(environment, "Path", lambda place: tmp_path / place.rpartition("/")[2])
    install(monkeypatch, Device("GPU-a"), Device("GPU-b"))
    monkeypatch.setattr(environment.os, "environ", {"NCCL_P2P_LEVEL": "NVL", "PATH": "/bin"})
    assert environment.device_settings() == {
        "driver": "NVRM version: NVIDIA 580.1",
        "power_limits": ["700.00 W", "700.00 W"],
        "variables": {"NCCL_P2P_LEVEL": "NVL"},
    }
    (tmp_path / "version").unlink()
    assert environment.device_settings()["driver"] is None
