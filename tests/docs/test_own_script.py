"""The example of docs/own-script.md runs as it stands there."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from zbench.record.lines import read
from zbench.spec.expand import expand
from zbench.spec.load import load_sweep

PAGE = (Path(__file__).parents[2] / "docs" / "own-script.md").read_text()


@pytest.fixture
def example(tmp_path: Path) -> Path:
    for name, kind in (("train.py", "python"), ("own.yaml", "yaml")):
        (text,) = re.findall(rf"```{kind}\n(.*?)```", PAGE, flags=re.DOTALL)
        (tmp_path / name).write_text(text)
    return tmp_path


def test_the_sweep_of_the_page_is_valid(example: Path) -> None:
    expansion = expand(load_sweep(example / "own.yaml", environ={}))
    assert [trial.axes for trial in expansion.trials] == [
        {"bucket_mb": 1},
        {"bucket_mb": 25},
    ]
    compile((example / "train.py").read_text(), "train.py", "exec")


@pytest.mark.soak
@pytest.mark.timeout(900)
def test_the_example_of_the_page_runs_and_is_judged(example: Path) -> None:
    programs = example / "bin"
    programs.mkdir()
    torchrun = f'#!/bin/sh\nexec {sys.executable} -m torch.distributed.run "$@"\n'
    (programs / "torchrun").write_text(torchrun)  # an environment may show torch, but not its programs
    (programs / "torchrun").chmod(0o755)
    env = os.environ | {"PATH": os.pathsep.join([os.environ["PATH"], str(programs)])}
    command = [sys.executable, "-m", "zbench.cli.main", "sweep", "own.yaml", "-q", "--repeats", "1"]
    done = subprocess.run(
        command, cwd=example, env=env, capture_output=True, text=True, check=False, timeout=900
    )
    assert done.returncode == 0, done.stderr
    (file,) = example.glob("results/own/*/trials.jsonl")
    records = read(file)
    assert [record.outcome for record in records] == ["ok", "ok"]
    assert {record.correctness.verdict for record in records} <= {"identical", "equivalent"}
