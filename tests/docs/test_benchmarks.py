"""The benchmark pages: each sweep can run, each table finds its rows, and the sweeps cover the claims."""

import shlex
from itertools import pairwise
from pathlib import Path

import pytest

from tests.making import make_record
from tools.benchmarks import sweeps
from zbench.analysis.relative import compared
from zbench.record.summary import summarize
from zbench.spec import peers
from zbench.spec.expand import expand
from zbench.spec.load import load_sweep
from zbench.spec.trial import TrialSpec

FILES = sorted(sweeps.SWEEPS.glob("*.yaml"))
BLOCKS = [
    pytest.param(name, command, id=command.removeprefix("zbench report ")[:60])
    for page in sweeps.PAGES
    for _, command, name, _ in sweeps._BLOCK.findall(page.read_text())
]


def expanded(name: str, patch: pytest.MonkeyPatch, missing: str | None) -> list[TrialSpec]:
    """Return the trials of a sweep; only rows of a package that is not installed are invalid.

    missing: the reason why DeepSpeed cannot run; None: DeepSpeed is installed.
    """
    patch.setattr(peers, "missing_package", lambda engine: missing if engine == "deepspeed" else None)
    expansion = expand(load_sweep(sweeps.SWEEPS / f"{name}.yaml", environ={}))
    assert {point.reason for point in expansion.invalid} <= {missing}
    assert (expansion.duplicates, expansion.unused) == (0, [])
    return expansion.trials


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_a_benchmark_expands_with_and_without_deepspeed(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    without, complete = (expanded(file.stem, monkeypatch, missing) for missing in ("not installed", None))
    assert {t.engine.engine for t in complete} - {t.engine.engine for t in without} <= {"deepspeed"}
    assert 4 <= len(without) <= len(complete) <= 200


@pytest.mark.parametrize(("name", "command"), BLOCKS)
def test_every_table_of_the_pages_finds_its_rows(
    name: str, command: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    trials = expanded(name, monkeypatch, None)
    summaries = summarize(make_record(t.trial_id, axes=t.axes, config=t.config()) for t in trials)
    words = shlex.split(command)
    flags = list(pairwise(words))
    to, by = ([value for flag, value in flags if flag == option] for option in ("--relative-to", "--by"))
    if to:
        table = compared(summaries, to, by)
        assert any(row.summary.axes.get("engine", "builtin") == "builtin" for row in table.rows)
    else:
        assert len(words) == 3


def test_every_benchmark_is_on_a_page() -> None:
    assert {parameters.values[0] for parameters in BLOCKS} == {file.stem for file in FILES}


def test_the_sweep_of_healthy_engines_covers_every_engine() -> None:
    """docs/verdicts.md derives its limits from this sweep."""
    sweep = load_sweep(sweeps.ROOT / "tools" / "benchmarks" / "healthy.yaml")
    trials = expand(sweep).trials
    assert {trial.engine.engine for trial in trials} >= {"builtin", "ddp", "zero_redundancy", "fsdp2"}
    assert {trial.run.steps for trial in trials} == {1, 3, 10, 50, 200}
    assert sweep.search.method == "covering"
