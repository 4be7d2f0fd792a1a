"""Everything a comparison can be pointed at, and everything that can be wrong with it."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from zbench.analysis import sources
from zbench.errors import UsageError
from zbench.record import documents, lines
from zbench.record.record import MemoryPeaks, Timing, Traffic

from .synthetic import BASE_ID, HEAD_ID, record, results, saved, trial, write_run

STEPS = [0.1, 0.11, 0.12]


@pytest.fixture
def out(tmp_path: Path) -> Path:
    write_run(tmp_path / "example" / BASE_ID, trial(STEPS))
    write_run(tmp_path / "example" / HEAD_ID, trial(STEPS), git={"commit": "beef", "dirty": True})
    return tmp_path


@pytest.mark.parametrize("name", ["last", "example"])
def test_the_newest_run(out: Path, name: str) -> None:
    results = sources.load_results(name, out)
    assert results.source.run_ids == (HEAD_ID,)
    assert results.source.commit == "beef+changes"


def test_a_directory_is_its_one_run_or_is_refused(out: Path) -> None:
    write_run(out / "other" / BASE_ID, trial(STEPS))
    assert sources.load_results(str(out / "other"), out).source.run_ids == (BASE_ID,)
    with pytest.raises(UsageError, match=r"holds 2 runs .*; name one of them"):
        sources.load_results(str(out / "example"), out)
    write_run(out / "example" / BASE_ID / "inner", trial(STEPS))
    with pytest.raises(UsageError, match="is a run and also holds runs"):
        sources.load_results(str(out / "example" / BASE_ID), out)


def test_records_alone_are_read_and_are_of_no_run(out: Path) -> None:
    alone = out / "trials.jsonl"
    alone.write_bytes((out / "example" / BASE_ID / "trials.jsonl").read_bytes())
    results = sources.load_results(str(alone), out)
    assert (results.trials[0].values("median_step_s"), results.source.run_ids) == (STEPS, ())


def test_what_sweep_json_prints(out: Path) -> None:
    document = {"schema_version": 1, "run_id": "r", "run_dir": "d", "exit_code": 0, "best": None}
    document["trials"] = [lines.jsonable(saved(item)) for item in trial(STEPS)]
    (out / "sweep.json").write_text(json.dumps(document))
    results = sources.load_results(str(out / "sweep.json"), out)
    assert results.source.run_ids == ("r",)
    assert not results.source.facts


def test_a_baseline_keeps_records_machine_and_commit(out: Path) -> None:
    original = sources.load_results(BASE_ID, out)
    path = sources.save_baseline("main-1.0", original, out)
    assert path == out / "baselines" / "main-1.0.json"
    assert sources.save_baseline("main-1.0", original, out) == path, "it replaces the one before"
    results = sources.load_results("main-1.0", out)
    assert results.trials == original.trials
    keys = ("run_ids", "sweep", "fingerprint", "facts", "commit", "started")
    assert [getattr(results.source, key) for key in keys] == [getattr(original.source, key) for key in keys]
    assert not list(path.parent.glob("*.partial"))


def test_a_baseline_that_two_save_at_once_is_the_one_or_the_other(
    out: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sync = documents.sync_directory
    both = [results(trial(steps)) for steps in (STEPS, STEPS[:1])]

    def sync_beside_another(path: Path) -> None:
        monkeypatch.setattr(documents, "sync_directory", sync)
        sources.save_baseline("main", both[1], out)
        sync(path)

    monkeypatch.setattr(documents, "sync_directory", sync_beside_another)
    path = sources.save_baseline("main", both[0], out)
    assert len(json.loads(path.read_text())["trials"]) in (len(STEPS), 1)
    assert list(path.parent.iterdir()) == [path]


@pytest.mark.parametrize("name", ["", ".hidden", "../escape", "a/b", "a b", "x" * 200])
def test_a_baseline_stays_in_its_directory(tmp_path: Path, name: str) -> None:
    with pytest.raises(UsageError, match="a baseline's name holds"):
        sources.save_baseline(name, results(trial(STEPS)), tmp_path)
    assert not list(tmp_path.rglob("*"))


@given(names=st.lists(st.text(min_size=1, max_size=30) | st.text("a/", min_size=90), min_size=2, unique=True))
@example(names=["feature/" + "x" * 200 + "1", "feature/" + "x" * 200 + "2", "x", "X", "a/b", "a-b", "a.2f.b"])
def test_every_branch_has_a_baseline_of_its_own(names: list[str]) -> None:
    names = [name for name in names if name.isprintable()]
    baselines = [sources.branch_baseline(name) for name in names]
    assert len(set(baselines)) == len(names)
    assert all(sources.baseline_path(name, Path()).name == f"{name}.json" for name in baselines)
    assert sources.branch_baseline("main").startswith("branch-main-")


def broken(tmp_path: Path, name: str, text: str | bytes) -> str:
    path = tmp_path / name
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return str(path)


@pytest.mark.parametrize(
    ("name", "text", "says"),
    [
        ("empty.json", " \n", "is empty"),
        ("cut.json", '{"schema_version": 1, "trials": [{"run', "or incomplete"),
        ("newer.json", '{"schema_version": 99, "trials": []}', "written by a newer zbench"),
        ("none.json", '{"schema_version": 1, "trials": []}', "holds no trials"),
        (
            "records.json",
            '{"schema_version": 1, "trials": [{"schema_version": 1}]}',
            r"trials\[0\]: not a zbench record",
        ),
        ("middle.jsonl", 'not json\n{"schema_version": 1}\n', r"middle.jsonl:1: damaged line"),
        ("binary.json", b"\xff\xfe\x00", "cannot read"),
    ],
)
def test_damaged_files_get_one_clear_message(tmp_path: Path, name: str, text: str | bytes, says: str) -> None:
    with pytest.raises(UsageError, match=says):
        sources.load_results(broken(tmp_path, name, text), tmp_path)


def test_a_file_cut_in_the_middle_keeps_its_whole_records(out: Path) -> None:
    path = out / "example" / BASE_ID / "trials.jsonl"
    path.write_bytes(path.read_bytes().rstrip())
    assert not sources.is_torn(path), "its last record is whole, though its line is not ended"
    path.write_bytes(path.read_bytes()[:-40])
    assert sources.is_torn(path)
    assert sources.is_torn(path.parent)
    assert sources.load_results(str(path), out).trials[0].values("median_step_s") == STEPS[:2]


TIMING = record(0.1).timing
assert TIMING is not None


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"timing": replace(TIMING, median_step_s=-0.1)}, "a step time is -0.1"),
        ({"timing": replace(TIMING, median_step_s=float("nan"))}, "a step time is nan"),
        ({"timing": replace(TIMING, median_step_s=0.1 * (1 + 2e-6))}, "median_step_s is 0.1000"),
        ({"timing": replace(TIMING, tokens_per_s=-0.5)}, "tokens_per_s is -0.5"),
        ({"timing": Timing([0.1, -1.0], 0.1, 1.0, 1.0)}, "a step time is -1.0"),
        ({"memory": MemoryPeaks(-5, None, None)}, "peak_device_bytes is -5"),
        ({"timing": replace(TIMING, median_step_s=1e6, step_seconds=[1e6])}, "a step time is 1000000.0"),
        ({"memory": MemoryPeaks(None, 1 << 60, None)}, "peak_host_bytes is"),
        ({"traffic": {"all_reduce": Traffic(1, -1)}}, "traffic.all_reduce"),
    ],
)
def test_absurd_values_are_refused_with_their_place(change: dict[str, object], says: str) -> None:
    with pytest.raises(UsageError, match=f"file.jsonl: trial tzero_stage1 repeat 0: {says}"):
        sources.check_plausible([replace(record(0.1), **change)], "file.jsonl")


def test_healthy_records_are_plausible() -> None:
    sources.check_plausible([*trial(STEPS), record(outcome="oom"), replace(record(0.1), memory=None)], "file")
    nothing = replace(record(0.1), memory=MemoryPeaks(0, 0, 0), traffic={"all_reduce": Traffic(0, 0)})
    sources.check_plausible([nothing], "file")
