"""docs/learn.md: its examples have the engine's bits, its call stacks are real, its changes work."""

import importlib
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import FrameType, ModuleType
from typing import Any
from unittest import mock

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn

import zbench
from zbench.engine import Engine, build_engine
from zbench.spec.engine import EngineSpec
from zbench.testing.ranks import RankPool

EXAMPLES = Path(__file__).parents[2] / "examples"
ENGINE = "zbench/engine/"


def example(name: str) -> ModuleType:
    """Import a file of `examples/`."""
    with mock.patch.object(sys, "path", [str(EXAMPLES), *sys.path]):
        return importlib.import_module(name)


def model() -> nn.Module:
    torch.manual_seed(3)
    return nn.Sequential(nn.Linear(13, 24), nn.Tanh(), nn.Linear(24, 24), nn.Tanh(), nn.Linear(24, 7))


def batch(step: int) -> Tensor:
    seed = 10 * step + dist.get_rank()
    return torch.randn(5, 13, generator=torch.Generator().manual_seed(seed))


def engine_of(group: dist.ProcessGroup, net: nn.Module, **keys: Any) -> Engine:
    return build_engine(net, EngineSpec(param_persistence_threshold=0, **keys), group)


def differing(net: nn.Module, engine: Engine) -> list[str]:
    """Return the names of the parameters whose bits are not the engine's."""
    values = engine.full_parameters()
    return [name for name, p in net.named_parameters() if not torch.equal(p, values[name])]


def hundred_lines(group: dist.ProcessGroup, stage: int) -> list[str]:
    """Train with the first example and the engine; return the parameters that differ after any step."""
    net = model()
    start = model().state_dict()
    differences = list[str]()
    if dist.get_rank() == 1:
        nn.init.zeros_(net[2].weight)  # rank 0's values count
    zero = example("zero_in_100_lines").Zero(net, stage)
    engine = engine_of(group, model(), zero_stage=stage)
    for step in range(4):
        net(batch(step)).square().mean().backward()
        zero.step()
        engine.backward(engine.model(batch(step)).square().mean())
        engine.step()
        for module in zero.modules:
            assert (module.full.untyped_storage().nbytes() == 0) == (stage == 3)
            module.gather()
        differences += differing(net, engine)
        assert not any(torch.equal(p, start[name]) for name, p in net.named_parameters()), "it trains"
        if stage == 3:
            for module in zero.modules:
                module.release()
    engine.close()
    return differences


def with_buckets(group: dist.ProcessGroup, bucket_size: int) -> list[str]:
    """Train with the second example and the engine; return the parameters that differ after any step."""
    net = model()
    start = model().state_dict()
    differences = list[str]()
    zero = example("zero_with_buckets").Zero2(net, bucket_size)
    keys = {"offload_optimizer": "cpu", "gradient_accumulation_steps": 2, "reduce_bucket_size": 512}
    engine = engine_of(group, model(), zero_stage=2, **keys)
    for step in range(4):
        for micro in (2 * step, 2 * step + 1):
            zero.backward(net(batch(micro)).square().mean())
            engine.backward(engine.model(batch(micro)).square().mean())
        zero.step()
        engine.step()
        differences += differing(net, engine)
        assert not any(torch.equal(p, start[name]) for name, p in net.named_parameters()), "it trains"
    engine.close()
    return differences


@dataclass
class Call:
    """One call of a function of the engine: `Class.function` in `file`, and the calls within."""

    function: str
    file: str
    inner: list["Call"]


def calls_of(run: Callable[[], object]) -> list[Call]:
    """Return the engine's calls while `run` runs in this thread."""
    root = Call("", "", [])
    open_calls = [root]

    def note(frame: FrameType, event: str, argument: object) -> None:
        file = frame.f_code.co_filename.partition(ENGINE)[2]
        if file and event == "call":
            open_calls[-1].inner.append(Call(frame.f_code.co_qualname, file, []))
            open_calls.append(open_calls[-1].inner[-1])
        elif file and event == "return" and len(open_calls) > 1:
            open_calls.pop()

    sys.setprofile(note)
    try:
        run()
    finally:
        sys.setprofile(None)
    return root.inner


def calls_of_a_step(group: dist.ProcessGroup, keys: dict[str, Any], backwards: int) -> list[Call]:
    """Return the engine's calls in a whole step, after one that shows the order of use."""
    engine = engine_of(group, model(), reduce_bucket_size=512, **keys)

    def step() -> None:
        for micro in range(backwards):
            engine.backward(engine.model(batch(micro)).square().mean())
        engine.step()

    step()
    calls = calls_of(step)
    engine.close()
    return calls


PAGE = (Path(__file__).parents[2] / "docs" / "learn.md").read_text(encoding="utf-8")


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
    assert ranks.run(2, f"{__name__}:hundred_lines", stage) == [[], []]


@pytest.mark.check
@pytest.mark.parametrize("bucket_size", [700, 1, 10_000])
def test_buckets_and_offload_have_the_engines_bits(bucket_size: int, ranks: RankPool) -> None:
    assert ranks.run(2, f"{__name__}:with_buckets", bucket_size) == [[], []]


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
    calls, _ = ranks.run(2, f"{__name__}:calls_of_a_step", keys, backwards)
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
