"""`zbench compare --paired` through the command line, with stand-ins for the two interpreters."""

import json
import sys
from pathlib import Path

import pytest
from analysis.synthetic import trial

from tests.cli.calling import run
from zbench.record import lines

STAND_IN = """#!{python} -IS
import json, random, sys
text = {document!r}
print(text.replace("0.125", str(0.125 * {factor} * random.uniform(0.99, 1.01))))
"""


@pytest.fixture
def sweep(tmp_path: Path) -> Path:
    path = tmp_path / "sweep.yaml"
    path.write_text("name: tiny\naxes: {zero_stage: [1]}\n")
    return path


def version(directory: Path, name: str, factor: float, verdict: str = "identical", peak: int = 10**6) -> Path:
    """Write an executable that answers every command with one record, `factor` times as slow."""
    document = {"schema_version": 1, "trials": [lines.jsonable(item) for item in trial([0.125], peak=peak)]}
    text = json.dumps(document).replace('"identical"', f'"{verdict}"')
    path = directory / name
    path.write_text(STAND_IN.format(python=sys.executable, document=text, factor=factor))
    path.chmod(0o755)
    return path


@pytest.mark.parametrize(
    ("factor", "verdict", "code", "answer"),
    [(1.0, "identical", 0, "pass"), (1.2, "identical", 1, "regression"), (0.5, "wrong", 4, "incorrect")],
)
def test_two_interpreters(
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    sweep: Path,
    factor: float,
    verdict: str,
    code: int,
    answer: str,
) -> None:
    base, head = version(tmp_path, "base", 1.0), version(tmp_path, "head", factor, verdict)
    plan = ("--blocks", "7", "--threshold", "step_time=5%", "--json")
    found, text, said = run(capsys, "compare", base, head, "--paired", "--sweep", sweep, *plan)
    document = json.loads(text)
    assert found == document["exit_code"] == code
    assert document["mode"] == "paired"
    assert [row["answer"] for row in document["trials"]] == [answer]
    assert [len(values) for values in document["paired"]["block_log_ratios"].values()] == [7]
    assert "block 7 of 7" in said


@pytest.mark.parametrize(
    ("verdict", "peak", "code", "answer"),
    [
        ("identical", 10**6, 0, "pass"),
        ("identical", 2 * 10**6, 1, "regression"),
        ("wrong", 10**6, 4, "incorrect"),
    ],
)
def test_without_timing_exact_figures_and_verdicts_decide(
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    sweep: Path,
    verdict: str,
    peak: int,
    code: int,
    answer: str,
) -> None:
    base, head = version(tmp_path, "base", 1.0), version(tmp_path, "head", 1.2, verdict, peak)
    plan = ("--paired", "--sweep", sweep, "--blocks", "0", "--json")
    found, text, _ = run(capsys, "compare", base, head, *plan)
    document = json.loads(text)
    assert found == document["exit_code"] == code
    assert [row["answer"] for row in document["trials"]] == [answer]


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ([], "name its file with --sweep FILE"),
        (["--sweep", "{sweep}", "--blocks", "6"], "6 blocks cannot reach alpha"),
        (["--sweep", "{sweep}", "--blocks", "12:8"], "MIN at most MAX"),
        (["--sweep", "{sweep}", "--blocks", "many"], "expected a number of blocks or MIN:MAX"),
        (["--sweep", "{sweep}", "--blocks", "0:4"], "expected a number of blocks or MIN:MAX"),
        (["--sweep", "{sweep}", "--precision", "1"], "--precision: expected a percentage"),
        (["--sweep", "{sweep}", "--save-baseline", "x"], "--save-baseline keeps stored results"),
        (["--sweep", "gone.yaml"], "gone.yaml"),
        (["--sweep", "{sweep}", "--set", "engine.zero_stge=1"], "zero_stge"),
    ],
)
def test_bad_plans_are_refused_before_anything_runs(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, sweep: Path, arguments: list[str], says: str
) -> None:
    words = [word.format(sweep=sweep) for word in arguments]
    code, text, said = run(capsys, "compare", tmp_path / "a", tmp_path / "b", "--paired", *words)
    assert (code, text) == (2, "")
    assert says in said
    assert "Traceback" not in said
