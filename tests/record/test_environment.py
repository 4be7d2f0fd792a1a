"""The fingerprint follows the machine and nothing else."""

import json
import subprocess

from tests.nvml import Device, install
from zbench.gpus import Gpu
from zbench.record import environment


def test_fingerprint_is_that_of_the_machine():
    machine = environment.machine_facts()
    assert environment.fingerprint(machine) == environment.fingerprint(json.loads(json.dumps(machine)))
    assert environment.fingerprint(machine | {"cpu": "another"}) != environment.fingerprint(machine)
    assert environment.fingerprint(dict(reversed(machine.items()))) == environment.fingerprint(machine)
    assert environment.fingerprint({"cpu": "Example", "cores": 2, "gpus": ["A", "B"]}) == "e398db2da1f5"


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
    facts = environment.collect()
    assert (facts["git"], facts["branch"]) == ({"commit": commit, "dirty": False}, "work")
    (tmp_path / "file").write_text("after")
    monkeypatch.setenv("GITHUB_HEAD_REF", "patch")
    facts = environment.collect()
    assert (facts["git"], facts["branch"]) == ({"commit": commit, "dirty": True}, "patch")
    monkeypatch.delenv("GITHUB_HEAD_REF")
    git("checkout", "--detach")
    assert environment.collect()["branch"] is None


def test_a_machine_has_a_name_of_processor_cores_and_gpus(monkeypatch):
    monkeypatch.setattr(environment, "cpu_model", lambda: "Example 9000")
    monkeypatch.setattr(environment.psutil, "cpu_count", lambda logical=True: 99 if logical else 48)
    assert environment.machine_name() == "Example 9000, 48 cores"
    monkeypatch.setattr(environment, "all_gpus", lambda: [Gpu(model) for model in ("H100", "A100", "H100")])
    assert environment.machine_name() == "Example 9000, 48 cores, 1 x A100, 2 x H100"


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
