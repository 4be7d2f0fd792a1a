"""The Action's own script on a user's repository, with its package, its sweep and real measurements."""

import json

import pytest

from tests.launch.revisions.conftest import make_their_project

from .test_action import Job, Outcome

MODEL = '''"""A user's model."""

import torch
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
SWEEP = """name: theirs
workload: {model: "their_model:Net", data: {synthetic: true}, sequence_length: 32, micro_batch_size: 2}
run: {world_size: 2, threads_per_rank: 1, device: cpu, warmup_steps: 1, steps: 4}
engine: {gradient_clipping: 1.0}
axes: {zero_stage: [1]}
"""
LINE = "        x = torch.relu(self.hidden(x))\n"
REDUCE = "        torch.distributed.all_reduce(torch.ones(1))\n"
SLOWER = (LINE, LINE * 8)
BIGGER = ("return nn", "copy = x.clone()\n        return nn")
WRONG = (
    LINE,
    LINE + "        if torch.distributed.is_initialized() and self.training:\n"
    "            x.register_hook(lambda gradient: gradient * (torch.distributed.get_rank() == 0))\n",
)
EQUAL = ("A user's model", "A user's small model")
CHANGES = {
    "equal": [EQUAL],
    "slower": [SLOWER],
    "bigger": [BIGGER],
    "collective": [(LINE, LINE + f"        if torch.distributed.is_initialized():\n    {REDUCE}")],
    "allocation": [(LINE, LINE + "        torch.empty(1)\n")],
    "slower-and-bigger": [SLOWER, BIGGER],
    "wrong": [WRONG],
}
AT_ONCE = {"Larger": "slower-and-bigger", "Broken": "wrong"}
"""Two models of the user's one module, and what one commit changes of each."""
MODELS = {name: MODEL.replace("class Net", f"class {name}") for name in ("Net", *AT_ONCE)}
TWO = (
    SWEEP.replace('model: "their_model:Net", ', "")
    .replace("steps: 4}", "steps: 4, yardstick: none}")
    .replace("axes: {", f"axes: {{model: {[f'their_model:{name}' for name in AT_ONCE]}, ")
)


@pytest.fixture(scope="module")
def job(tmp_path_factory: pytest.TempPathFactory) -> Job:
    """A runner with a repository whose package is one module, installed once from each revision."""
    runner = Job(tmp_path_factory.mktemp("theirs"))
    make_their_project(runner.directory)
    (runner.directory / "sweeps").mkdir()
    (runner.directory / "sweeps" / "sweep.yaml").write_text(SWEEP)
    (runner.directory / ".gitignore").write_text("bin\ncache\noutput\nsummary\nzbench-comparison\n")
    (runner.directory / "sweeps" / "two.yaml").write_text(TWO)
    (runner.directory / "their_model.py").write_text("\n".join(MODELS.values()))
    runner.git("init", "-q", "-b", "main")
    runner.git("add", ".")
    runner.git("commit", "-q", "-m", "base")
    return runner


def compared(job: Job, changes: dict[str, str], blocks: str, sweep: str = "sweep") -> Outcome:
    """Commit a change of each of these models, and compare them with the base."""
    name = "-".join(changes.values())
    job.git("checkout", "-q", "-B", f"change-{name}", "main")
    texts = dict(MODELS)
    for model, change in changes.items():
        for old, new in CHANGES[change]:
            assert old in texts[model]
            texts[model] = texts[model].replace(old, new)
    (job.directory / "their_model.py").write_text("\n".join(texts.values()))
    job.git("commit", "-q", "-a", "-m", name)
    return job.run(SWEEP=f"sweeps/{sweep}.yaml", BLOCKS=blocks)


@pytest.mark.check
def test_exact_figures_and_verdicts_alone_tell_two_changes_apart(job: Job) -> None:
    """Each alone, and the exit code that it ends with: the soak runs below."""
    outcome = compared(job, AT_ONCE, blocks="0", sweep="two")
    assert outcome.code == "4", outcome.console
    document = json.loads((outcome.directory / "compare.json").read_text())
    rows = {row["axes"]["model"].partition(":")[2]: row for row in document["trials"]}
    assert {name: row["answer"] for name, row in rows.items()} == {
        "Larger": "regression",
        "Broken": "incorrect",
    }
    exact = {name: {one["metric"]: one["answer"] for one in row["exact"]} for name, row in rows.items()}
    assert {exact["Larger"][metric] for metric in ("flops", "allocations", "operators")} == {"regression"}
    assert exact["Broken"]["flops"] == "same"
    for words in ("floating-point operations a step", "allocations a step"):
        assert words in outcome.summary


SLOWER_SAYS, BIGGER_SAYS = "floating-point operations a step", "allocations a step"
TIMED = "detected nine times in ten"


@pytest.mark.soak
@pytest.mark.timeout(1800)
@pytest.mark.parametrize(
    ("change", "blocks", "code", "messages"),
    [
        ("equal", "0", "0", []),
        ("slower-and-bigger", "0", "1", [SLOWER_SAYS, BIGGER_SAYS]),
        ("wrong", "0", "4", []),
        ("slower", "0", "1", [SLOWER_SAYS]),
        ("bigger", "0", "1", [BIGGER_SAYS]),
        ("collective", "0", "1", ["operators a step"]),
        ("allocation", "0", "1", [BIGGER_SAYS]),
        ("equal", "7:8", "0", [TIMED]),
        ("slower", "7:8", "1", [TIMED]),
        ("wrong", "7:8", "4", [TIMED]),
    ],
)
def test_each_change_alone_is_told(
    job: Job, change: str, blocks: str, code: str, messages: list[str]
) -> None:
    """Exact figures and verdicts tell it without timing, too."""
    outcome = compared(job, {"Net": change}, blocks)
    assert outcome.code == code, outcome.console
    for words in messages:
        assert words in outcome.summary
