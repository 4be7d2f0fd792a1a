"""`list` and `show` read what changed, and import statistics only to compute them."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from zbench.analysis import overview
from zbench.bench import scale
from zbench.record import lines, store


@pytest.fixture
def results(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a directory with three finished runs that were written long ago."""
    monkeypatch.setattr(overview, "_SETTLED_NS", -1)
    sweep = scale.write_sweep(tmp_path / "sweep.json", 4)
    for number in range(3):
        scale.write_run(sweep, tmp_path / "results", f"run-{number}")
    return tmp_path / "results"


def test_a_second_list_parses_no_record_and_a_third_only_those_that_changed(
    zbench, results: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    parsed: list[Path] = []
    real = lines.read
    monkeypatch.setattr(store.lines, "read", lambda path: parsed.append(path) or real(path))
    first = zbench("list", "-o", results, "--json").out
    assert len(parsed) == 3
    assert zbench("list", "-o", results, "--json").out == first
    assert len(parsed) == 3
    changed = store.find_runs(results)[1] / store.TRIALS
    changed.write_bytes(b"".join(changed.read_bytes().splitlines(keepends=True)[:2]))
    assert zbench("list", "-o", results, "--json").out != first
    assert parsed[3:] == [changed]


def test_a_run_has_its_overview_when_its_command_ends(
    zbench, sweep_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    document = json.loads(zbench("sweep", sweep_file, "--json").out)
    monkeypatch.setattr(store.lines, "read", None)
    (row,) = json.loads(zbench("list", "--json").out)["runs"]
    assert row["configurations"] == 2
    assert (row["best"], row["recommended"]) == (document["best"], document["recommended"])
    assert row["problem"] is None


@pytest.mark.parametrize("words", [["list"], ["show", "run-1"]], ids=lambda words: words[0])
def test_statistics_are_not_imported_for_what_is_known(zbench, results: Path, words: list[str]) -> None:
    zbench(*words, "-o", results)
    code = (
        "import sys\nfrom zbench.cli.main import main\ntry:\n    main(sys.argv[1:])\n"
        "except SystemExit:\n    sys.exit(sorted({'scipy', 'numpy', 'torch'} & set(sys.modules)) or 0)"
    )
    call = [sys.executable, "-c", code, *words, "-o", str(results)]
    done = subprocess.run(call, env=os.environ, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr.replace(f"{results}/scale/run-1\n", "")) == (0, "")


def test_the_cost_of_a_command_is_that_of_its_process() -> None:
    cost = scale.cost_of("help", ["--help"], most_s=0.0)
    assert cost.cpu_s > 0
    assert cost.peak_bytes > scale.MIB
    assert not cost.is_met
    with pytest.raises(RuntimeError, match="ended with 2"):
        scale.cost_of("nothing", ["show", "no-such-run"], 1.0)


@pytest.mark.soak
@pytest.mark.timeout(1800)
def test_large_sweeps_and_many_runs_stay_within_the_bars(tmp_path: Path) -> None:
    """CPU time on a quiet machine; a `list` of 1,000 runs without overviews reads them all and has no bar."""
    found = scale.costs(tmp_path, configurations=5_000, runs=1_000)
    assert [cost.row() for cost in found if not cost.is_met] == []
