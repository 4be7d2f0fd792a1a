"""What was finished stays finished: kills, full disks, second writers."""

import json
import math
import resource
from datetime import UTC, datetime
from unittest.mock import Mock

import pytest

from tests.making import make_record
from zbench.errors import UsageError
from zbench.record import lines, store
from zbench.record.documents import FIRST, DamagedError, checksum_of, linked, relinked, sealed
from zbench.record.record import Failure, Heat, MemoryPeaks, Timing
from zbench.record.store import (
    TRIALS,
    RunDirectory,
    StorageError,
    find_runs,
    load_environment,
    load_records,
    resolve_run,
)


@pytest.fixture
def run(tmp_path):
    with RunDirectory.create(
        tmp_path, "my sweep", spec={"name": "my sweep"}, environment={"a": 1}
    ) as directory:
        yield directory


def test_appended_records_come_back_after_reopening(run):
    killed = Failure("killed", "killed by signal 9", "log")
    records = [
        *(make_record(repeat=n) for n in range(3)),
        make_record(repeat=7, outcome="crashed", error=killed),
    ]
    for record in records:
        run.append(record)
    assert load_records(run.path) == records == run.records()
    run.close()
    with RunDirectory.open(run.path) as again:
        assert again.records() == records[:-1], "what was killed runs once more"
        assert again.holds("aaaaaaaaaaaa", 2)


def test_repeats_of_unlike_machines_are_not_kept_together(run):
    first, other = (
        make_record(repeat=i, machine=kind) for i, kind in enumerate(("EPYC, 64 cores", "Xeon, 8 cores"))
    )
    for record in (make_record(repeat=2), first):
        run.append(record)
    content = (run.path / TRIALS).read_bytes()
    with pytest.raises(
        UsageError, match=r"another kind of machine \(Xeon, 8 cores\).*EPYC, 64 cores.*constraint"
    ):
        run.append(other)
    assert (run.path / TRIALS).read_bytes() == content
    run.close()
    with RunDirectory.open(run.path) as again, pytest.raises(UsageError, match="another kind of machine"):
        again.append(other)


def test_a_run_keeps_no_repeat_of_an_edited_model(run):
    run.append(make_record(repeat=0, inputs={"model.py": "1"}))
    run.append(make_record(repeat=1, inputs={"model.py": "1", "more.py": "1"}))
    for edited in ({"model.py": "2"}, {"more.py": "2"}):
        with pytest.raises(UsageError, match=r"(model|more)\.py changed while the run was under way"):
            run.append(make_record(repeat=2, inputs=edited))
    run.close()
    with RunDirectory.open(run.path) as again, pytest.raises(UsageError, match=r"more\.py changed"):
        again.append(make_record(repeat=2, inputs={"model.py": "1", "more.py": "2"}))
    assert len(run.records()) == 2


@pytest.mark.parametrize("length", [20, -1])
def test_a_torn_tail_is_repaired_without_loss(run, length):
    run.append(make_record())
    written = (run.path / TRIALS).read_bytes()
    torn = lines.encode(make_record(repeat=1), checksum_of(written))[:length]
    run.close()
    with (run.path / "trials.jsonl").open("ab") as file:
        file.write(torn)
    repeats = [0, 1] if length == -1 else [0]
    with RunDirectory.open(run.path) as again:
        assert [r.repeat for r in again.records()] == repeats
        again.append(make_record(repeat=2))
    assert [r.repeat for r in load_records(run.path)] == [*repeats, 2]
    if length != -1:
        assert (run.path / "trials.damaged").read_bytes() == torn + b"\n"


def test_a_damaged_line_is_set_aside_and_named_when_the_run_is_continued(run):
    for repeat in range(3):
        run.append(make_record(repeat=repeat))
    run.close()
    file = run.path / TRIALS
    first, second, third = file.read_bytes().splitlines(keepends=True)
    damaged = second.replace(b'"tokens_per_s":100.0', b'"tokens_per_s":900.0')
    file.write_bytes(first + damaged + third)
    with pytest.raises(UsageError, match=r"trials\.jsonl:2: damaged line"):
        load_records(run.path)
    with RunDirectory.open(run.path) as again:
        assert again.damaged == (f"{file}:2",)
        assert [again.holds("aaaaaaaaaaaa", repeat) for repeat in range(3)] == [True, False, True]
    assert file.read_bytes() == relinked([first, third])[0]
    assert (run.path / "trials.damaged").read_bytes() == damaged
    with RunDirectory.open(run.path) as again:
        assert again.damaged == ()


@pytest.mark.parametrize("target", ["file", "directory", "replaced"])
def test_records_that_are_removed_in_mid_run_are_noticed(run, target):
    run.append(make_record())
    if target == "directory":
        run.path.rename(run.path.with_name("elsewhere"))
    elif target == "replaced":
        (run.path / TRIALS).write_bytes(b"")
    else:
        (run.path / TRIALS).unlink()
    for claim in (lambda: run.append(make_record(repeat=1)), run.records, run.discard_if_empty):
        with pytest.raises(UsageError, match="was removed or changed by another process"):
            claim()
    assert not (run.path / TRIALS).exists() or target == "replaced"


@pytest.mark.parametrize(("asked", "mode"), [(None, 0o700), ("755", 0o755)])
def test_a_run_is_its_owners_alone_unless_asked(tmp_path, monkeypatch, asked, mode):
    if asked:
        monkeypatch.setenv("ZBENCH_RUN_MODE", asked)
    with RunDirectory.create(tmp_path, "s", spec={}, environment={}) as run:
        assert run.path.stat().st_mode & 0o777 == mode
    monkeypatch.setenv("ZBENCH_RUN_MODE", "rwx")
    with pytest.raises(UsageError, match="ZBENCH_RUN_MODE: expected a mode as chmod takes it"):
        RunDirectory.create(tmp_path, "s", spec={}, environment={})


@pytest.mark.parametrize(
    "change",
    [
        {"timing": Timing([0.01, -0.013], 0.01, 1.0, 1.0)}, {"timing": Timing([0.0], 0.0, None, None)},
        {"heat": Heat("a", [0.1, 0.0])}, {"heat": Heat("a", [0.1], machine={"copy": [math.nan]})},
        {"memory": MemoryPeaks(-1, 0, 0)}, {"elapsed_s": -5.0},
    ],
)  # fmt: skip
def test_a_record_of_impossible_figures_is_not_written(run, change):
    with pytest.raises(UsageError, match="which no measurement gives; it is not recorded"):
        run.append(make_record(**change))
    assert run.records() == []


def test_full_disk_is_an_error_in_words_and_loses_nothing(run):
    """A limit on file size stands for the full disk: the write is cut short."""
    run.append(make_record())
    size = (run.path / "trials.jsonl").stat().st_size
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size + 30, limits[1]))
    try:
        with pytest.raises(StorageError, match=r"cannot write .*: No space left on device; .*--resume"):
            run.append(make_record(repeat=1))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert (run.path / "trials.jsonl").stat().st_size == size
    assert [r.repeat for r in load_records(run.path)] == [0]


def test_unwritable_place_is_refused_and_nothing_is_left(tmp_path):
    blocked = tmp_path / "file"
    blocked.write_text("")
    with pytest.raises(UsageError, match=r"cannot write results under .*choose with -o"):
        RunDirectory.create(blocked / "results", "s", spec={}, environment={})
    assert list(tmp_path.iterdir()) == [blocked]


def test_discard_removes_only_a_run_without_records(tmp_path):
    with RunDirectory.create(tmp_path / "results", "s", spec={}, environment={}) as run:
        (run.path / "logs" / "x.log").write_text("said before the end")
        run.append(make_record(outcome="invalid"))
        assert run.discard_if_empty()
    assert not (tmp_path / "results" / "s").exists()
    with RunDirectory.create(tmp_path / "results", "s", spec={}, environment={}) as run:
        run.append(make_record())
        assert not run.discard_if_empty()
        assert run.path.exists()


@pytest.mark.parametrize("data", [sealed({"schema_version": 99}), b'{"schema_version": 99, "seal": "?"}'])
def test_a_run_of_a_newer_format_is_named_so_and_not_damaged(run, data):
    (run.path / "environment.json").write_bytes(data)
    (run.path / TRIALS).write_bytes(b"lines of another form\n")
    for reading in (load_environment, load_records):
        with pytest.raises(UsageError, match=r"written by a newer zbench .*update zbench"):
            reading(run.path)


def test_what_a_newer_zbench_adds_within_a_format_is_read_over(run):
    run.append(make_record())
    run.close()
    environment = load_environment(run.path) | {"added": [1]}
    (run.path / "environment.json").write_bytes(sealed(environment))
    end = json.loads((run.path / "end.json").read_text()) | {"added": 2}
    end.pop("digest")
    values = lines.jsonable(make_record()) | {"added": {"by": "a newer one"}}
    line = linked(json.dumps(values), FIRST)
    (run.path / TRIALS).write_bytes(line)
    (run.path / "end.json").write_bytes(sealed(end | {"last": checksum_of(line)}))
    assert load_records(run.path) == [make_record()]


def test_a_sweep_file_that_was_changed_is_no_longer_the_runs(run):
    file = run.path / "spec.yaml"
    whole = file.read_bytes()
    for bit in range(8 * len(whole)):
        changed = bytearray(whole)
        changed[bit // 8] ^= 1 << bit % 8
        file.write_bytes(changed)
        for reading in (load_records, load_environment):
            with pytest.raises(DamagedError, match=r"spec\.yaml was changed since the run began"):
                reading(run.path)
    file.write_bytes(whole)
    assert load_records(run.path) == []
    file.unlink()
    with pytest.raises(UsageError, match=r"cannot read \S+/spec\.yaml: No such file"):
        load_environment(run.path)


def test_runs_are_found_by_path_id_sweep_and_last(tmp_path, monkeypatch):
    names = iter(["20260101-000000-aaaa", "20260102-000000-bbbb", "20260103-000000-cccc"])
    monkeypatch.setattr(store, "new_run_id", lambda _: next(names))
    paths = []
    for sweep in ("one", "one", "two"):
        with RunDirectory.create(tmp_path, sweep, spec={}, environment={}) as run:
            paths.append(run.path)
    assert find_runs(tmp_path) == paths
    assert resolve_run(str(paths[0]), tmp_path) == paths[0]
    assert resolve_run("20260102-000000-bbbb", tmp_path) == paths[1]
    assert resolve_run("one/20260101-000000-aaaa", tmp_path) == paths[0]
    assert resolve_run("one", tmp_path) == paths[1]
    assert resolve_run("last", tmp_path) == resolve_run("last~0", tmp_path) == paths[2]
    assert [resolve_run(f"last~{age}", tmp_path) for age in (1, 2)] == [paths[1], paths[0]]
    assert resolve_run("one~1", tmp_path) == paths[0]
    with pytest.raises(UsageError, match="no run"):
        resolve_run("one~2", tmp_path)
    with pytest.raises(UsageError, match=r"no run 'three'.*the newest is two/20260103"):
        resolve_run("three", tmp_path)


def test_record_whose_append_was_interrupted_counts(run, monkeypatch):
    """Ctrl-C and SIGTERM can come between the write and the next statement."""

    def interrupted(_: int) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(store.os, "fsync", interrupted)
    with pytest.raises(KeyboardInterrupt):
        run.append(make_record())
    monkeypatch.undo()
    assert not run.discard_if_empty()
    assert run.records() == [make_record()]


@pytest.mark.parametrize("missing", ["spec.yaml", "environment.json", "trials.jsonl"])
def test_a_directory_that_lacks_one_file_is_no_run(run, missing):
    (run.path / missing).unlink()
    run.close()
    for reading in (load_records, RunDirectory.open):
        with pytest.raises(UsageError, match="is not a run directory"):
            reading(run.path)


def clock(monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    now = datetime.fromisoformat(text).replace(tzinfo=UTC)
    monkeypatch.setattr(store, "datetime", Mock(wraps=datetime, now=lambda _: now))


def test_last_is_the_newest_run_though_the_clock_was_set_back(tmp_path, monkeypatch):
    paths = []
    for time in ("2026-01-02T00:00:00", "2026-01-02T00:00:00", "2020-01-01T00:00:00", "2026-01-03T00:00:00"):
        clock(monkeypatch, time)
        with RunDirectory.create(tmp_path, f"s{len(paths) % 2}", spec={}, environment={}) as run:
            paths.append(run.path)
        assert resolve_run("last", tmp_path) == run.path
    assert find_runs(tmp_path) == paths
    assert [path.name[:19] for path in paths[1:]] == [
        "20260102-000000-001", "20260102-000000-002", "20260103-000000-000",
    ]  # fmt: skip


def test_a_run_whose_records_are_a_link_is_read_and_not_written(run, tmp_path):
    run.close()
    (run.path / "study.journal.lock0c53-9bc8.rename").symlink_to(run.path / "study.journal")
    RunDirectory.open(run.path).close()  # a lock that Optuna was about to remove
    (run.path / "trials.jsonl").rename(tmp_path / "elsewhere.jsonl")
    (run.path / "trials.jsonl").symlink_to(tmp_path / "elsewhere.jsonl")
    assert load_records(run.path) == []
    with pytest.raises(UsageError, match=r"/trials\.jsonl is a symbolic link, and resuming would write"):
        RunDirectory.open(run.path)


@pytest.mark.parametrize("count", [0, 1, 2])
def test_lines_that_are_lost_at_the_end_of_a_finished_run_are_noticed(run, count):
    for repeat in range(3):
        run.append(make_record(repeat=repeat))
    run.close()
    file = run.path / TRIALS
    whole = file.read_bytes()
    file.write_bytes(b"".join(whole.splitlines(keepends=True)[:count]))
    with pytest.raises(UsageError, match=rf"expected 3 lines, as when the run ended, found {count}; resume"):
        load_records(run.path)
    with RunDirectory.open(run.path) as again:
        assert len(again.records()) == count
        again.append(make_record(repeat=2))
    assert len(load_records(run.path)) == min(count + 1, 3)
