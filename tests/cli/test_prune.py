"""`zbench prune` removes what can be made again, and nothing else."""

import os
import time
from dataclasses import replace
from pathlib import Path

import pytest

from tests.cli.conftest import only_run
from tests.making import make_record
from zbench.launch.cache import leftovers, removable
from zbench.record import lines
from zbench.record.locks import DirectoryLock
from zbench.record.record import Failure
from zbench.record.store import RunDirectory, load_records


@pytest.fixture
def ran(zbench, sweep_file, monkeypatch, tmp_path) -> Path:
    """Return a run with a repeat that crashed, references left, and an environment's folder."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    zbench("sweep", sweep_file, "--repeats", "1", "--set", "axes={zero_stage: [0]}")
    run = only_run()
    with RunDirectory.open(run) as directory:
        first = directory.records()[0]
        log = f"logs/{first.trial_id}-r9/rank0.log"
        error = Failure("crashed", "it fell over", log)
        directory.append(replace(first, repeat=9, outcome="crashed", error=error))
    for text in (log, f"logs/{first.trial_id}-r{first.repeat}/rank0.log"):
        (run / text).parent.mkdir()
        (run / text).write_text("what it said")
    for folder in (run / "references", run / "traces", tmp_path / "cache/zbench/environments/abc-1"):
        folder.mkdir(parents=True)
        (folder / "file").write_bytes(b"x" * 100)
    return run


def files_of(run: Path) -> set[str]:
    return {str(path.relative_to(run)) for path in run.rglob("*") if path.is_file()}


def test_prune_keeps_records_and_logs_of_failures(zbench, ran, tmp_path):
    records = load_records(ran)
    assert {record.outcome for record in records} == {"ok", "crashed"}
    before = files_of(ran)
    output = zbench("prune", "--older-than", "0.001ms")
    assert output.code == 0
    assert load_records(ran) == records
    assert before - files_of(ran) == {
        *("references/file", "traces/file", f"logs/{records[0].trial_id}-r0/rank0.log")
    }
    assert not (tmp_path / "cache/zbench/environments/abc-1").exists()
    assert "100 B in 1 place: references of an interrupted run" in output.out
    assert "kept: records" in output.out
    assert zbench("prune", "--older-than", "0.001ms").out.startswith("nothing to remove")


def test_prune_removes_nothing_outside_of_the_run(zbench, ran, tmp_path):
    """Links and hostile records lead out of it: neither is followed."""
    precious = tmp_path / "precious"
    for name in ("logs", "references", "traces"):
        (ran / name).rename(precious if name == "logs" else tmp_path / name)
        (ran / name).symlink_to(precious if name == "logs" else tmp_path / name)
    before = {path for path in tmp_path.rglob("*") if "cache" not in path.parts}
    assert zbench("prune", "--older-than", "0.001ms").code == 0
    hostile = replace(load_records(ran)[0], trial_id="../../../../precious", repeat=0)
    (ran / "trials.jsonl").write_bytes(lines.encode(hostile))
    assert zbench("prune", "--older-than", "0.001ms").code == 0
    assert {path for path in tmp_path.rglob("*") if "cache" not in path.parts} >= before


def test_a_dry_run_lists_and_removes_nothing(zbench, ran):
    before = files_of(ran)
    document = zbench("prune", "--older-than", "0.001ms", "--dry-run", "--json").document
    assert str(ran / "references") in {row["path"] for row in document["removed"]}
    assert files_of(ran) == before


def test_only_what_is_old_goes(zbench, ran):
    assert zbench("prune", "--json").document["removed"] == []
    old = time.time() - 3 * 86400
    for path in (ran / "references", ran / "references" / "file"):
        os.utime(path, (old, old))
    (folder,) = removable(Path("results"), older_than_s=2 * 86400)
    assert folder.path == ran / "references"


def killed_before_a_record(place: Path) -> Path:
    """Make what a command leaves that is killed before its first repeat ends."""
    run = RunDirectory.create(place, "s", spec={"name": "s"}, environment={})
    run.append(make_record(outcome="invalid", timing=None))
    run._lock.release()
    return run.path


def test_what_killed_commands_left_is_listed_and_removed(zbench, ran):
    results = Path("results")
    empty, begun = killed_before_a_record(results), killed_before_a_record(results)
    for file in (begun / "spec.yaml", begun / "trials.jsonl", begun / "environment.json"):
        file.unlink()
    names = ("tags.json.0123abcd.partial", f"{ran.relative_to(results)}/end.json.0123abcd.partial")
    for name in (*names, "mine.partial"):
        (results / name).touch()
    expected = {str(empty), str(begun), *(str(results / name) for name in names)}
    assert set(zbench("list", "--json").document["leftovers"]) == expected
    output = zbench("list")
    assert f"run without a record: {empty}" in output.out
    assert f"draft of a document: results/{names[0]}" in output.out
    before = files_of(results)
    assert zbench("prune", "--json").document["removed"] == [], "they are not a day old"
    lock = DirectoryLock(empty)
    zbench("prune", "--older-than", "0.001ms")
    lock.release()
    assert empty.exists()
    assert {path.split("/")[-1] for path in before - files_of(results)} >= {Path(name).name for name in names}
    assert zbench("list", "--json").document["leftovers"] == [str(empty)]


@pytest.mark.parametrize("name", ["end.json", "notes.txt", "trials.jsonl"])
def test_a_run_that_holds_more_or_was_ended_is_kept(tmp_path, name):
    run = killed_before_a_record(tmp_path)
    if name == "trials.jsonl":
        (run / name).write_text("{damaged\n{damaged\n")
    (run / name).touch()
    assert not list(leftovers(tmp_path))


def test_a_run_that_is_being_written_is_left_alone(zbench, ran):
    with RunDirectory.open(ran):
        output = zbench("prune", "--older-than", "0.001ms", "--json")
    assert (ran / "references" / "file").exists()
    assert "not removed" in output.err
    assert [row["kind"] for row in output.document["removed"]] == ["environment of a revision"]
