"""The Action's own script on a user's repository, with its package, its sweep and real measurements."""

from pathlib import Path

import pytest

from tests.launch.test_revisions import BACKEND, PROJECT

from .test_action import Job, Outcome

MODEL = '''
"""A user's model."""
import torch
import torch.distributed as dist
from torch import nn


class Net(nn.Module):
    def __init__(self, width=32):
        super().__init__()
        self.embed = nn.Embedding(256, width)
        self.hidden = nn.Linear(width, width)
        self.head = nn.Linear(width, 256)

    def forward(self, tokens, targets):
        x = self.embed(tokens)
        x = torch.relu(self.hidden(x))
        return nn.functional.cross_entropy(self.head(x).flatten(0, 1), targets.flatten())
'''
LINE = "        x = torch.relu(self.hidden(x))\n"
REDUCE = "        dist.all_reduce(torch.ones(1))\n"
SWEEP = """
name: theirs
workload: {model: "their_model:Net", data: {synthetic: true}, sequence_length: 32, micro_batch_size: 2}
run: {world_size: 2, threads_per_rank: 1, device: cpu, warmup_steps: 1, steps: 4}
engine: {gradient_clipping: 1.0}
axes: {zero_stage: [1]}
"""
CHANGES = {
    "equal": (MODEL, MODEL.replace("A user's model", "A user's small model")),
    "slower": (MODEL, MODEL.replace(LINE, LINE * 8)),
    "collective": (MODEL, MODEL.replace(LINE, LINE + f"        if dist.is_initialized():\n    {REDUCE}")),
    "allocation": (MODEL, MODEL.replace(LINE, LINE + "        torch.empty(1)\n")),
    "bigger": (MODEL, MODEL.replace("return nn", "copy = x.clone()\n        return nn")),
    "wrong": (
        MODEL,
        MODEL.replace(
            LINE,
            LINE + "        if dist.is_initialized() and self.training:\n"
            "            x.register_hook(lambda gradient: gradient * (dist.get_rank() == 0))\n",
        ),
    ),
}  # fmt: skip


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cache")


@pytest.fixture
def job(tmp_path: Path) -> Job:
    """A runner with a repository whose package is one module, installed from each revision."""
    found = Job(tmp_path)
    backend = BACKEND.replace('Path("zbench").rglob("*.py")', 'Path().glob("their_model.py")')
    backend = backend.replace("zbench-", "theirs-").replace("Name: zbench", "Name: theirs")
    (tmp_path / "backend.py").write_text(backend)
    (tmp_path / "pyproject.toml").write_text(PROJECT.replace('"zbench"', '"theirs"'))
    (tmp_path / "sweeps").mkdir()
    (tmp_path / "sweeps" / "sweep.yaml").write_text(SWEEP)
    (tmp_path / ".gitignore").write_text("bin\noutput\nsummary\nzbench-comparison\n")
    found.git("init", "-q", "-b", "main")
    return found


def compared(job: Job, change: str, cache: Path, blocks: str) -> Outcome:
    for number, text in enumerate(CHANGES[change]):
        (job.directory / "their_model.py").write_text(text)
        job.git("add", ".")
        job.git("commit", "-q", "-m", str(number), "--allow-empty")
    return job.run(SWEEP="sweeps/sweep.yaml", BLOCKS=blocks, CACHE=str(cache))


soak = pytest.mark.soak


@pytest.mark.parametrize(
    ("change", "code"),
    [
        ("equal", "0"),
        ("slower", "1"),
        ("bigger", "1"),
        ("wrong", "4"),
        pytest.param("collective", "1", marks=soak),
        pytest.param("allocation", "1", marks=soak),
    ],
)
def test_exact_figures_and_verdicts_alone_tell(job: Job, cache: Path, change: str, code: str) -> None:
    found = compared(job, change, cache, blocks="0")
    assert found.code == code, found.said
    if change in ("bigger", "allocation"):
        assert "allocations a step" in found.summary
    if change == "collective":
        assert "operators a step" in found.summary
    if change == "slower":
        assert "floating-point operations a step" in found.summary


@pytest.mark.soak
@pytest.mark.timeout(1800)
@pytest.mark.parametrize(("change", "code"), [("equal", "0"), ("slower", "1"), ("wrong", "4")])
def test_with_timing_they_are_red_red_and_green(job: Job, cache: Path, change: str, code: str) -> None:
    found = compared(job, change, cache, blocks="7:8")
    assert found.code == code, found.said
    assert "would have been called nine times in ten" in found.summary
