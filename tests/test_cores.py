"""`--cores`: the command and its ranks run on the cores that it names, and on no others."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from zbench.cores import in_ranges, parsed, use_cores
from zbench.errors import UsageError
from zbench.launch.disturbance import free_cores

FIRST = min(os.sched_getaffinity(0))


@pytest.mark.parametrize(("text", "cores"), [("0", {0}), ("0-3,6", {0, 1, 2, 3, 6}), ("2, 4", {2, 4})])
def test_a_list_names_cores_and_ranges(text: str, cores: set[int]) -> None:
    assert parsed(text) == cores
    assert parsed(in_ranges(cores)) == cores


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "expected a list such as 0-3,6, got ''"),
        ("3-1", "expected a list such as 0-3,6"),
        ("all", "expected a list such as 0-3,6"),
        ("99999", "core 99999 is not there for this process; it may use "),
        (str(FIRST), "1 for 2 ranks; name 2 or more, or set fewer ranks"),
    ],
)
def test_other_lists_are_refused_with_the_remedy(text: str, message: str) -> None:
    before = os.sched_getaffinity(0)
    with pytest.raises(UsageError, match="--cores: ") as caught:
        use_cores(text, ranks=2)
    assert message in str(caught.value)
    assert os.sched_getaffinity(0) == before


def test_free_cores_are_cores_that_this_process_may_use() -> None:
    assert free_cores(0.1) <= os.sched_getaffinity(0)


def test_ranks_run_on_these_cores(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(
        "import os, pathlib, torch\n"
        "class Net(torch.nn.Linear):\n"
        "    def __init__(self):\n"
        "        super().__init__(4, 1)\n"
        "        used = sorted(os.sched_getaffinity(0))\n"
        "        pathlib.Path('used.txt').write_text(str(used))\n"
        "    def make_batch(self, generator, size, length):\n"
        "        return (torch.randn(size, 4, generator=generator),)\n"
        "    def forward(self, x):\n"
        "        return super().forward(x).square().mean()\n"
    )
    run = {"world_size": 1, "steps": 2, "warmup_steps": 1, "repeats": 1}
    sweep = {"name": "mine", "workload": {"model": "mine:Net"}, "run": run, "verify": {"mode": "off"}}
    (tmp_path / "sweep.yaml").write_text(json.dumps(sweep))
    command = [sys.executable, "-m", "zbench", "run", "sweep.yaml", "--json", "--cores", str(FIRST)]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "used.txt").read_text() == str([FIRST])
