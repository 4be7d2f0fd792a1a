"""`engine_python`: ranks run under another environment, which has no zbench and says what it lacks."""

import json
import sys
import sysconfig
import venv
from pathlib import Path

import pytest

from tests.launch.conftest import FAKES
from tests.world import run
from zbench.launch.executor import RepeatTask
from zbench.launch.process.local import LocalExecutor
from zbench.launch.sweep import SweepPlan, run_sweep
from zbench.record.store import RunDirectory
from zbench.spec.environments import WORKER_NEEDS
from zbench.spec.expand import Expansion, expand
from zbench.spec.load import load_sweep
from zbench.spec.sweep import SweepSpec, sweep_document


def make_environment(place: Path, *, deepspeed: str | None = None, shared: bool = True) -> Path:
    """Make a virtual environment without pip; `shared` shows it the packages of the running one."""
    venv.EnvBuilder(symlinks=True).create(place)
    packages = Path(sysconfig.get_path("purelib", "venv", {"base": str(place), "platbase": str(place)}))
    if shared:
        paths = [entry for entry in sys.path if entry.endswith(("site-packages", "dist-packages"))]
        (packages / "shared.pth").write_text("\n".join(paths))
    if deepspeed is not None:
        (packages / "deepspeed").mkdir()
        (packages / "deepspeed" / "__init__.py").write_text(f"__version__ = {deepspeed!r}\n")
        about = packages / f"deepspeed-{deepspeed}.dist-info"
        about.mkdir()
        (about / "METADATA").write_text(f"Metadata-Version: 2.1\nName: deepspeed\nVersion: {deepspeed}\n")
    return place


@pytest.fixture(scope="module")
def environments(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a directory with environments: two versions of DeepSpeed, and one without torch."""
    place = tmp_path_factory.mktemp("environments")
    make_environment(place / "old", deepspeed="0.18.2")
    make_environment(place / "new", deepspeed="0.19.8")
    make_environment(place / "bare", shared=False)
    return place


def swept(place: Path, *values: str | None, engine: str = "deepspeed") -> SweepSpec:
    """Return the sweep of a file in `place`: relative environments begin there."""
    file = place / "sweep.json"
    document = {
        "workload": {"model": "fake_worker:model", "options": {"do": "where"}},
        "run": {"repeats": 1},
        "engine": {"engine": engine, "zero_stage": 0},
        "axes": {"engine_python": list(values)},
    }
    file.write_text(json.dumps(document))
    return load_sweep(file, environ={})


def test_two_versions_race_and_each_record_names_its_own(environments: Path, tmp_path: Path) -> None:
    sweep = swept(environments, "old", str(environments / "new" / "bin" / "python"), "bare", "gone")
    expansion = expand(sweep)
    assert len(expansion.trials) == 2
    with RunDirectory.create(tmp_path, "race", spec=sweep_document(sweep), environment={}) as directory:
        run_sweep(
            SweepPlan(expansion),
            directory,
            lambda: LocalExecutor(directory.path, environments, targets=FAKES),
        )
        records = {record.axes["engine_python"]: record for record in directory.records()}
    assert records["old"].environment["deepspeed"] == "0.18.2"
    assert records["old"].environment["python"] == ".".join(map(str, sys.version_info[:3]))
    assert records[str(environments / "new" / "bin" / "python")].environment["deepspeed"] == "0.19.8"
    for name, written in (("old", "old"), ("new", str(environments / "new" / "bin" / "python"))):
        assert records[written].outcome == "ok", records[written].error
        prefix = (directory.path / f"prefix-{written.replace('/', '_')}").read_text()
        assert prefix == str(environments / name), "the rank runs under that environment"
    assert records["bare"].outcome == records["gone"].outcome == "invalid"
    references = (directory.path / "prefix-reference").read_text()
    assert references == sys.prefix, "the reference runs in zbench's own environment"


def reasons(expansion: Expansion) -> list[str]:
    return [point.reason for point in expansion.invalid]


FULL = ["torch", *WORKER_NEEDS]


def impostor(path: Path, *, python: list[int], tag: str, versions: list[str]) -> None:
    """Write a program that answers as an interpreter of that version would, and can do nothing else."""
    packages = dict.fromkeys(versions, "9")
    told = json.dumps({"python": python, "tag": tag, "versions": packages, "plugins": []})
    fails = "echo no such core >&2; exit 1"
    path.write_text(f"#!/bin/sh\ncase $1 in -E) echo '{told}';; *) {fails};; esac\n")
    path.chmod(0o755)


def test_an_old_python_is_refused(environments: Path) -> None:
    impostor(environments / "ancient", python=[3, 8, 18], tag="cpython-38", versions=["torch"])
    assert reasons(expand(swept(environments, "old", "ancient"))) == [
        "ancient is Python 3.8.18; zbench's worker needs 3.11 or newer"
    ]


def test_an_environment_needs_what_a_worker_imports_and_one_of_another_python_runs_no_builtin(
    environments: Path,
) -> None:
    impostor(environments / "other", python=[3, 99, 0], tag="cpython-399", versions=["torch"])
    (lacking,) = reasons(expand(swept(environments, "old", "other")))
    assert lacking.startswith("other has no deepspeed, pydantic, psutil, safetensors; run ")
    impostor(environments / "whole", python=[3, 99, 0], tag="cpython-399", versions=FULL)
    (builtin,) = reasons(expand(swept(environments, "old", "whole", engine="builtin")))
    assert "kernels are built for" in builtin
    assert reasons(expand(swept(environments, "whole", "old", engine="ddp"))) == []


def test_a_server_that_cannot_start_fails_its_trial_only(environments: Path, tmp_path: Path) -> None:
    tag = str(sys.implementation.cache_tag)
    impostor(environments / "broken", python=[3, 11, 0], tag=tag, versions=FULL)
    (trial,) = expand(swept(environments, "broken", engine="ddp")).trials
    executor = LocalExecutor(tmp_path, environments, targets=FAKES)
    try:
        for _ in range(2):
            attempt = run(executor, RepeatTask(trial))
            assert attempt.error is not None
            assert attempt.error.message == "the trial server did not start: no such core"
    finally:
        executor.close()
