"""Runs of earlier versions are shown, compared and resumed: the fixture was written at revision 399f646."""

import json
import shutil
from pathlib import Path

import pytest

from zbench.record import environment

EARLIER = Path(__file__).parents[1] / "fixtures" / "earlier" / "run"


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """Return a copy of the run where commands find it, as if it had been measured on this machine."""
    (original,) = EARLIER.iterdir()
    copy = shutil.copytree(original, tmp_path / "results" / "earlier" / original.name)
    about = json.loads((original / "environment.json").read_text())
    here = environment.collect(**about["invocation"])
    about |= {name: here[name] for name in ("fingerprint", "machine", "software")}
    (copy / "environment.json").write_text(json.dumps(about))
    return copy


def recorded(run: Path) -> list[tuple[str, int]]:
    lines = [json.loads(line) for line in (run / "trials.jsonl").read_text().splitlines()]
    return [(line["trial_id"], line["repeat"]) for line in lines]


def test_it_is_shown(zbench, run):
    document = json.loads(zbench("show", "last", "--json").out)
    assert sorted(recorded(run)) == sorted((r["trial_id"], r["repeat"]) for r in document["trials"])
    measured = [r for r in document["trials"] if r["outcome"] == "ok"]
    assert len(measured) == 10
    assert {r["correctness"]["verdict"] for r in measured} == {"identical"}
    assert all(r["timing"]["tokens_per_s"] > 0 for r in measured)


@pytest.mark.parametrize(
    "words",
    [
        ("show", "last", "-v"),
        ("list",),
        ("compare", "last", "--save-baseline", "main"),
        ("report", "last"),
        ("export", "last", "--trial", "909ef1321135", "--to", "deepspeed"),
        ("history",),
    ],
    ids=lambda words: words[0],
)
def test_every_reader_takes_it(zbench, run, words):
    said = zbench(*words)
    assert said.code == 0, said.err
    assert said.out or "baseline" in said.err


def test_a_finished_run_has_nothing_left_to_resume(zbench, run):
    before = recorded(run)
    assert zbench("sweep", "--resume", "last").code == 0
    assert recorded(run) == before


def test_what_was_left_is_run_and_nothing_twice(zbench, run):
    before = recorded(run)
    lines = (run / "trials.jsonl").read_text().splitlines(keepends=True)
    (run / "trials.jsonl").write_text("".join(lines[:-2]))
    said = zbench("sweep", "--resume", "last")
    assert said.code == 0, said.err
    assert recorded(run)[:-2] == before[:-2]
    assert sorted(recorded(run)) == sorted(before)
