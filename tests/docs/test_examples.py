"""The examples are users' repositories in small: each sweep plans, and (soak) runs with good verdicts."""

import importlib.util
import os
from pathlib import Path

import pytest

from tests.cli.conftest import run
from zbench.record.store import find_runs, load_records

ROOT = Path(__file__).parents[2]
SWEEPS = sorted((ROOT / "examples").glob("*/sweep.yaml"))
NAMES = [sweep.parent.name for sweep in SWEEPS]


def test_every_example_is_described():
    page = (ROOT / "examples" / "README.md").read_text()
    assert NAMES
    assert all(f"`{name}`" in page for name in NAMES)


@pytest.mark.parametrize("sweep", SWEEPS, ids=NAMES)
def test_plans_from_any_directory(sweep, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    code, out, _ = run(capsys, "plan", sweep)
    assert code == 0
    assert "trials of 3 repeats" in out


@pytest.mark.check
@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    "sweep",
    [sweep for sweep in SWEEPS if sweep.parent.name != "deepspeed_script"],
    ids=lambda s: s.parent.name,
)
def test_runs_and_every_configuration_is_identical(sweep, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    code, _, err = run(capsys, "sweep", sweep, "--repeats", 1)
    assert code == 0, err
    (directory,) = find_runs(tmp_path / "results")
    verdicts = {record.correctness.verdict for record in load_records(directory) if record.outcome == "ok"}
    assert verdicts == {"identical"}


@pytest.mark.soak
@pytest.mark.timeout(1800)
def test_the_deepspeed_script_runs_and_every_configuration_trains_the_same(tmp_path, monkeypatch, capsys):
    python = os.environ.get("DEEPSPEED_PYTHON")
    if python is None and importlib.util.find_spec("deepspeed") is None:
        pytest.skip("DeepSpeed is not installed, and DEEPSPEED_PYTHON names none")
    monkeypatch.chdir(tmp_path)
    where = ["--set", f"engine_python={python}"] if python else []
    words = ["examples/deepspeed_script/sweep.yaml", "--repeats", 1, "--set", "run.device=cpu", *where]
    code, _, err = run(capsys, "sweep", ROOT / words[0], *words[1:])
    assert code == 0, err
    (directory,) = find_runs(tmp_path / "results")
    ran = [record for record in load_records(directory) if record.outcome != "invalid"]
    assert [record.outcome for record in ran] == ["ok"] * 7
    assert {record.correctness.verdict for record in ran} <= {"identical", "equivalent"}
