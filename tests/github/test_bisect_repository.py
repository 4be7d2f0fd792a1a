"""`zbench bisect` on a user's repository of 32 commits: a copy more, 5 % slower, a gradient dropped."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from .test_action import Job
from .test_own_repository import CHANGES, MODEL

COMMITS = 32
BIGGER, SLOWER, WRONG = 9, 15, 24
SWEEP = """
name: theirs
workload: {model: "their_model:Net", data: {synthetic: true}, sequence_length: 32, micro_batch_size: 32}
run: {world_size: 2, threads_per_rank: 1, device: cpu, warmup_steps: 2, steps: 12}
engine: {gradient_clipping: 1.0}
axes: {zero_stage: [1]}
"""
START = "    def forward(self, tokens, targets):\n"
LONGER = (
    START,
    START + "        begun, now = getattr(self, 'begun', None), time.perf_counter()\n"
    "        while begun is not None and time.perf_counter() < now + min(0.05 / 1.05 * (now - begun), 0.1):\n"
    "            pass\n"
    "        self.begun = now\n",
)
"""A step is 5 % longer than the rest of it: nothing but a clock can show that."""


TIMED = ["--slower", "--blocks", "8:24"]
TIMED += [f"--set={text}" for text in ("run.world_size=1", "run.steps=30", "verify.mode=off")]


@pytest.fixture(scope="module")
def job(tmp_path_factory: pytest.TempPathFactory) -> Job:
    """A runner with the repository; each commit keeps what the ones before it changed."""
    runner = Job(tmp_path_factory.mktemp("theirs"))
    (runner.directory / "sweep.yaml").write_text(SWEEP)
    runner.git("init", "-q", "-b", "main")
    text = MODEL.replace("import torch\n", "import time\n\nimport torch\n", 1).replace(
        "width=32", "width=384"
    )
    changes = {BIGGER: CHANGES["bigger"], SLOWER: [LONGER], WRONG: CHANGES["wrong"]}
    for number in range(COMMITS + 1):
        for old, new in changes.get(number, ()):
            assert old in text
            text = text.replace(old, new)
        (runner.directory / "their_model.py").write_text(f"{text}\n# {number}\n")
        runner.git("add", "sweep.yaml", "their_model.py")
        runner.git("commit", "-q", "-m", f"commit {number}")
    return runner


@pytest.mark.soak
@pytest.mark.timeout(5400)
@pytest.mark.parametrize(
    ("bad", "words", "first", "sought"),
    [
        (COMMITS, ["--blocks", "0"], WRONG, "incorrect"),
        (WRONG - 1, ["--blocks", "0"], BIGGER, "regression"),
        pytest.param(WRONG - 1, TIMED, SLOWER, "regression", id="slower"),
    ],
)
def test_the_commit_is_found(
    job: Job, tmp_path: Path, bad: int, words: list[str], first: int, sought: str
) -> None:
    """Exact figures and verdicts need no clock, so they are found on a loaded machine, too.

    What needs one is timed on one rank, which leaves a core of a small machine to everything else.
    """
    ends = [f"HEAD~{COMMITS}", f"HEAD~{COMMITS - bad}"]
    options = ["--sweep", "sweep.yaml", "--state", str(tmp_path / "state.json"), "--json", *words]
    command = [sys.executable, "-P", "-m", "zbench.cli.main", "bisect", *ends, *options]
    with (tmp_path / "stderr").open("w") as log:
        done = subprocess.run(
            command, cwd=job.directory, stdout=subprocess.PIPE, stderr=log, text=True, check=False
        )
    assert done.returncode == 0, (tmp_path / "stderr").read_text()
    document = json.loads(done.stdout)
    assert document["first_bad"] == job.git("rev-parse", f"HEAD~{COMMITS - first}")
    assert document["sought"] == sought
    assert document["probes"] <= 6
