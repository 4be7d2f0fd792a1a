"""The benchmark sweeps: what they expand to, the tables that pages ask of them, and runs that go on."""

import re
import shlex
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace

import pytest

from tests.analysis.synthetic import BASE_ID, trial, write_run
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
    expansion = expand(load_sweep(sweeps.SWEEPS / f"{name}.yaml", environ={}))
    assert {point.reason for point in expansion.invalid} <= {missing}
    assert (expansion.duplicates, expansion.unused) == (0, [])
    return expansion.trials


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
    to, by = ([value for flag, value in flags if flag == option] for option in ("--relative-to", "--by"))
    if to:
        table = compared(summaries, to, by)
        assert any(row.summary.axes.get("engine", "builtin") == "builtin" for row in table.rows)
    else:
        assert len(words) == 3


def test_every_benchmark_is_on_a_page() -> None:
    assert {parameters.values[0] for parameters in BLOCKS} == {file.stem for file in FILES}


def test_a_page_gets_the_tables_of_the_records_that_are_stored(tmp_path: Path) -> None:
    block = "<!-- zbench report results/benchmarks/{}.json -->\nbefore\n<!-- end -->\n"
    page = f"# Title\n\n{block.format('small')}\nbetween\n\n{block.format('grid')}"
    run = write_run(tmp_path / sweeps.RUNS / "small" / BASE_ID, trial([0.1, 0.2]))
    sweeps.zbench("compare", "small", "--save-baseline", "small", "-o", str(sweeps.RUNS), cwd=tmp_path)
    (tmp_path / sweeps.RESULTS).mkdir(parents=True)
    (run.parents[1] / "baselines" / "small.json").rename(tmp_path / sweeps.RESULTS / "small.json")
    text = sweeps.filled(page, tmp_path)
    assert re.search(r"small.json -->\n\n\| configuration .*\n<!-- end -->\n\nbetween", text, re.DOTALL)
    assert text.endswith(block.format("grid")), "what was not measured stays as it was"
    assert sweeps.filled(text, tmp_path) == text


def test_a_run_that_is_there_goes_on_and_its_records_are_stored(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[tuple[str, ...]] = []
    code = 6

    def zbench(*words: str, cwd: Path) -> object:
        calls.append(words)
        return SimpleNamespace(returncode=code)

    monkeypatch.setattr(sweeps, "zbench", zbench)
    stored = tmp_path / sweeps.RUNS / "baselines" / "small.json"
    stored.parent.mkdir(parents=True)
    stored.write_text("{}")
    file = tmp_path / "sweeps" / "small.yaml"
    assert sweeps.run(file, ["run.repeats=1"], tmp_path) == 6
    assert (tmp_path / sweeps.RESULTS / "small.json").exists()
    run = write_run(tmp_path / sweeps.RUNS / "small" / BASE_ID, trial([0.1]))
    code = 130
    assert sweeps.run(file, [], tmp_path) == 130
    new = ("sweep", "sweeps/small.yaml", "-o", "build/benchmarks", "--set", "run.repeats=1")
    save = ("compare", "small", "--save-baseline", "small", "-o", "build/benchmarks", "-q")
    assert calls == [new, save, (*new[:4], "--resume", str(run.relative_to(tmp_path)))]


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
