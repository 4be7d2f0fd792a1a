"""docs/learn.md: its examples have the engine's bits, its call stacks are real, its changes work."""

import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

import zbench
from tests.docs.teaching import EXAMPLES, Call
from zbench.testing.ranks import RankPool

PAGE = (Path(__file__).parents[2] / "docs" / "learn.md").read_text(encoding="utf-8")
TEACHING = "tests.docs.teaching"


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", PAGE, flags=re.DOTALL)


STACKS = blocks("text")
BY_HAND, *CHECKS = blocks("python")
PATCHES = blocks("diff")


@pytest.fixture(scope="module")
def ranks() -> Iterator[RankPool]:
    pool = RankPool(2)
    yield pool
    pool.close()


@pytest.mark.parametrize("stage", [2, *(pytest.param(stage, marks=pytest.mark.check) for stage in (1, 3))])
def test_a_hundred_lines_have_the_engines_bits(stage: int, ranks: RankPool) -> None:
    assert ranks.run(2, f"{TEACHING}:hundred_lines", stage) == [[], []]


@pytest.mark.check
@pytest.mark.parametrize("bucket_size", [700, 1, 10_000])
def test_buckets_and_offload_have_the_engines_bits(bucket_size: int, ranks: RankPool) -> None:
    assert ranks.run(2, f"{TEACHING}:with_buckets", bucket_size) == [[], []]


@pytest.mark.check
@pytest.mark.timeout(300)
@pytest.mark.parametrize("name", ["zero_in_100_lines", "zero_with_buckets"])
def test_an_example_runs_as_a_script(name: str) -> None:
    script = [sys.executable, str(EXAMPLES / f"{name}.py")]
    done = subprocess.run(script, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    losses = [line.partition("loss ")[2] for line in done.stdout.splitlines()]
    assert len(losses) == 3, done.stdout
    assert len(set(losses)) == 1, f"{losses}: every stage and every bucket size trains alike"


@dataclass
class Line:
    """One line of a call stack on the page, and those below it that are farther to the right."""

    function: str
    file: str
    inner: list["Line"]


def lines_of(stack: str) -> list[Line]:
    root = Line("", "", [])
    above = [(-1, root)]
    for text in stack.splitlines():
        function, file = text.lstrip("> ").split()[:2]
        depth = len(text) - len(text.lstrip("> "))
        while above[-1][0] >= depth:
            above.pop()
        above[-1][1].inner.append(Line(function, file, []))
        above.append((depth, above[-1][1].inner[-1]))
    return root.inner


def flat(calls: list[Call]) -> Iterator[Call]:
    for call in calls:
        yield call
        yield from flat(call.inner)


def missing(lines: list[Line], calls: list[Call]) -> list[str]:
    """Return the first line for which no call follows that of the line before it, with its inner lines."""
    rest = flat(calls)
    for line in lines:
        nearest = [line.function]
        for call in rest:
            if (call.function, call.file) == (line.function, line.file):
                nearest = [line.function, *missing(line.inner, call.inner)]
                if len(nearest) == 1:
                    break
        else:
            return nearest
    return []


@pytest.mark.parametrize(
    ("stack", "keys", "backwards"),
    [
        (STACKS[0], {"zero_stage": 2, "offload_optimizer": "cpu", "gradient_accumulation_steps": 2}, 2),
        pytest.param(STACKS[1], {"zero_stage": 3}, 1, marks=pytest.mark.check),
    ],
    ids=["stage 2", "stage 3"],
)
def test_a_step_makes_the_calls_on_the_page(
    stack: str, keys: dict[str, Any], backwards: int, ranks: RankPool
) -> None:
    calls, _ = ranks.run(2, f"{TEACHING}:calls_of_a_step", keys, backwards)
    assert missing(lines_of(stack), calls) == []


@pytest.mark.check
def test_a_verdict_by_hand_tells_rounding_from_mistakes() -> None:
    done = subprocess.run([sys.executable, "-c", BY_HAND], capture_output=True, text=True, check=True)
    verdicts = [line.partition(" -> ")[2] for line in done.stdout.splitlines()]
    assert verdicts == ["identical", "equivalent", "drifted or wrong", "drifted or wrong"]


WITHOUT_THE_INSTALLATION = """
import sys
sys.meta_path[:] = [finder for finder in sys.meta_path if "editable" not in type(finder).__module__]
sys.path.insert(0, {tree!r})
import zbench
assert zbench.__path__[0].startswith({tree!r}), zbench.__path__
"""


@pytest.mark.parametrize(
    ("patch", "check", "shown"),
    [
        (PATCHES[0], CHECKS[0], "elements of each bucket: [512, 4096, 4096, 1536]"),
        pytest.param(PATCHES[1], CHECKS[1], "engine=builtin", marks=pytest.mark.check),
        pytest.param(
            PATCHES[2], CHECKS[2], "(Goal(metric='jitter', direction='minimize'),)", marks=pytest.mark.check
        ),
    ],
    ids=["a bucket policy", "an export", "a metric"],
)
def test_a_change_of_ten_lines_works(patch: str, check: str, shown: str, tmp_path: Path) -> None:
    assert sum(line.startswith("+ ") or line == "+" for line in patch.splitlines()) <= 10
    for place in zbench.__path__:
        shutil.copytree(place, tmp_path / "zbench", dirs_exist_ok=True)
    subprocess.run(["git", "apply", "-"], cwd=tmp_path, input=patch, text=True, check=True)
    code = WITHOUT_THE_INSTALLATION.format(tree=str(tmp_path)) + check
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == shown
