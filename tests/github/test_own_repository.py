"""The Action's own script on a user's repository, with its package, its sweep and real measurements."""

import pytest

from tests.launch.revisions.repositories import BACKEND, PROJECT
from zbench.bench.docs_only import MODEL, SWEEP

from .test_action import Job, Outcome

LINE = "        x = torch.relu(self.hidden(x))\n"
REDUCE = "        torch.distributed.all_reduce(torch.ones(1))\n"
SLOWER = (LINE, LINE * 8)
BIGGER = ("return nn", "copy = x.clone()\n        return nn")
WRONG = (
    LINE,
    LINE + "        if torch.distributed.is_initialized() and self.training:\n"
    "            x.register_hook(lambda gradient: gradient * (torch.distributed.get_rank() == 0))\n",
)
CHANGES = {
    "equal": [("A user's model", "A user's small model")],
    "slower": [SLOWER],
    "bigger": [BIGGER],
    "collective": [(LINE, LINE + f"        if torch.distributed.is_initialized():\n    {REDUCE}")],
    "allocation": [(LINE, LINE + "        torch.empty(1)\n")],
    "slower-and-bigger": [SLOWER, BIGGER],
    "wrong": [WRONG],
}


@pytest.fixture(scope="module")
def job(tmp_path_factory: pytest.TempPathFactory) -> Job:
    """A runner with a repository whose package is one module, installed once from each revision."""
    found = Job(tmp_path_factory.mktemp("theirs"))
    backend = BACKEND.replace('Path("zbench").rglob("*.py")', 'Path().glob("their_model.py")')
    backend = backend.replace("zbench-", "theirs-").replace("Name: zbench", "Name: theirs")
    (found.directory / "backend.py").write_text(backend)
    (found.directory / "pyproject.toml").write_text(PROJECT.replace('"zbench"', '"theirs"'))
    (found.directory / "sweeps").mkdir()
    (found.directory / "sweeps" / "sweep.yaml").write_text(SWEEP)
    (found.directory / ".gitignore").write_text("bin\ncache\noutput\nsummary\nzbench-comparison\n")
    (found.directory / "their_model.py").write_text(MODEL)
    found.git("init", "-q", "-b", "main")
    found.git("add", ".")
    found.git("commit", "-q", "-m", "base")
    return found


def compared(job: Job, change: str, blocks: str) -> Outcome:
    """Check a change of the base out, and compare it with the base."""
    job.git("checkout", "-q", "-B", f"change-{change}", "main")
    text = MODEL
    for old, new in CHANGES[change]:
        assert old in text
        text = text.replace(old, new)
    (job.directory / "their_model.py").write_text(text)
    job.git("commit", "-q", "-a", "-m", change)
    return job.run(SWEEP="sweeps/sweep.yaml", BLOCKS=blocks)


soak = pytest.mark.soak


@pytest.mark.parametrize(
    ("change", "code", "said"),
    [
        ("equal", "0", []),
        ("slower-and-bigger", "1", ["floating-point operations a step", "allocations a step"]),
        ("wrong", "4", []),
        pytest.param("slower", "1", ["floating-point operations a step"], marks=soak),
        pytest.param("bigger", "1", ["allocations a step"], marks=soak),
        pytest.param("collective", "1", ["operators a step"], marks=soak),
        pytest.param("allocation", "1", ["allocations a step"], marks=soak),
    ],
)
def test_exact_figures_and_verdicts_alone_tell(job: Job, change: str, code: str, said: list[str]) -> None:
    found = compared(job, change, blocks="0")
    assert found.code == code, found.said
    for words in said:
        assert words in found.summary


@pytest.mark.soak
@pytest.mark.timeout(1800)
@pytest.mark.parametrize(("change", "code"), [("equal", "0"), ("slower", "1"), ("wrong", "4")])
def test_with_timing_they_are_red_red_and_green(job: Job, change: str, code: str) -> None:
    found = compared(job, change, blocks="7:8")
    assert found.code == code, found.said
    assert "would have been called nine times in ten" in found.summary
