"""The benchmark sweeps: what they expand to, the tables that pages ask of them, and runs that go on."""

import re
import shlex
from itertools import pairwise
from pathlib import Path

import pytest
from analysis.synthetic import BASE_ID, trial, write_run

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
    """Return the trials of a sweep whose only invalid rows are those of a package that is not there."""
    patch.setattr(peers, "missing_package", lambda engine: missing if engine == "deepspeed" else None)
    found = expand(load_sweep(sweeps.SWEEPS / f"{name}.yaml", environ={}))
    assert {point.reason for point in found.invalid} <= {missing}
    assert (found.duplicates, found.unused) == (0, [])
    return found.trials


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_a_benchmark_expands_without_rows_that_cannot_be(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With DeepSpeed and without; its rows alone are missing where it is."""
    here, there = (expanded(file.stem, monkeypatch, missing) for missing in ("not here", None))
    assert {t.engine.engine for t in there} - {t.engine.engine for t in here} <= {"deepspeed"}
    assert 4 <= len(here) <= len(there) <= 200


@pytest.mark.parametrize(("name", "command"), BLOCKS)
def test_every_table_of_the_pages_finds_what_it_compares(
    name: str, command: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Our rows are compared with the peers that the table names."""
    trials = expanded(name, monkeypatch, None)
    summaries = summarize(make_record(t.trial_id, axes=t.axes, config=t.config()) for t in trials)
    words = shlex.split(command)
    flags = list(pairwise(words))
    to, by = ([value for flag, value in flags if flag == wanted] for wanted in ("--relative-to", "--by"))
    if to:
        found = compared(summaries, to, by)
        assert any(row.summary.axes.get("engine", "builtin") == "builtin" for row in found.rows)
    else:
        assert len(words) == 3


def test_every_benchmark_is_on_a_page() -> None:
    assert {parameters.values[0] for parameters in BLOCKS} == {file.stem for file in FILES}


def test_a_page_gets_the_tables_of_the_runs_that_there_are(tmp_path: Path) -> None:
    block = "<!-- zbench report {} -->\nbefore\n<!-- end -->\n"
    page = f"# Title\n\n{block.format('small')}\nbetween\n\n{block.format('grid')}"
    write_run(tmp_path / sweeps.RESULTS / "small" / BASE_ID, trial([0.1, 0.2]))
    text = sweeps.filled(page, tmp_path)
    assert re.search(r"report small -->\n\n\| configuration .*\n<!-- end -->\n\nbetween", text, re.DOTALL)
    assert text.endswith(block.format("grid")), "what was not measured stays as it was"
    assert sweeps.filled(text, tmp_path) == text


def test_a_run_that_is_there_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[tuple[str, ...]] = []

    class Done:
        returncode = 6

    monkeypatch.setattr(sweeps, "zbench", lambda *words, cwd: calls.append(words) or Done)
    file = tmp_path / "sweeps" / "small.yaml"
    assert sweeps.run(file, ["run.repeats=1"], tmp_path) == 6
    run = write_run(tmp_path / sweeps.RESULTS / "small" / BASE_ID, trial([0.1]))
    sweeps.run(file, [], tmp_path)
    new = ("sweep", "sweeps/small.yaml", "-o", "results/benchmarks", "--set", "run.repeats=1")
    assert calls == [new, (*new[:4], "--resume", str(run.relative_to(tmp_path)))]


def test_a_sweep_of_healthy_engines_covers_every_engine() -> None:
    sweep = load_sweep(sweeps.ROOT / "tools" / "benchmarks" / "healthy.yaml")
    trials = expand(sweep).trials
    assert {one.engine.engine for one in trials} >= {"builtin", "ddp", "zero_redundancy", "fsdp2"}
    assert {one.run.steps for one in trials} == {1, 3, 10, 50, 200}
    assert sweep.search.method == "covering"


def test_the_sweep_of_estimates_has_at_least_200_configurations() -> None:
    expansion = expand(load_sweep(sweeps.ROOT / "tools" / "benchmarks" / "llama-8b.yaml"))
    assert len(expansion.trials) >= 200
    assert not expansion.invalid
