"""`zbench bisect` on a user's repository of 32 commits: one drops a gradient, one adds a copy."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from .test_action import Job
from .test_own_repository import CHANGES, MODEL, SWEEP

COMMITS = 32


@pytest.mark.soak
@pytest.mark.timeout(1800)
@pytest.mark.parametrize(("fault", "at", "sought"), [("wrong", 21, "incorrect"), ("bigger", 9, "regression")])
def test_the_commit_is_found(tmp_path: Path, fault: str, at: int, sought: str) -> None:
    """Exact figures and verdicts need no clock, so this holds on a loaded machine."""
    job = Job(tmp_path)
    job.git("init", "-q", "-b", "main")
    (tmp_path / "sweep.yaml").write_text(SWEEP)
    for number in range(COMMITS + 1):
        model = CHANGES[fault][1] if number >= at else MODEL
        (tmp_path / "their_model.py").write_text(f"{model}\n# {number}\n")
        job.git("add", "sweep.yaml", "their_model.py")
        job.git("commit", "-q", "-m", f"commit {number}")
    words = ["bisect", f"HEAD~{COMMITS}", "HEAD", "--sweep", "sweep.yaml", "--blocks", "0", "--json"]
    command = [sys.executable, "-P", "-m", "zbench.cli.main", *words]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    assert document["first_bad"] == job.git("rev-parse", f"HEAD~{COMMITS - at}")
    assert document["sought"] == sought
    assert document["probes"] <= 6
