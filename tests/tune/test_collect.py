"""Between a study and run directories: unlike machines apart, nothing twice, nothing from elsewhere."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from zbench.record.record import Failure
from zbench.record.store import TRIALS, RunDirectory, load_environment, load_records
from zbench.spec.sweep import sweep_document
from zbench.tune.collect import adopt, gather, gather_elsewhere, record_invalid
from zbench.tune.identity import Worker
from zbench.tune.ledger import Ledger
from zbench.tune.space import Space

from .fakes import small_sweep
from .test_ledger import POINTS, SPACE, SWEEP, begin, ledger, result
from .test_space import ranged


@pytest.fixture
def directory(tmp_path: Path) -> Iterator[RunDirectory]:
    made = RunDirectory.create(
        tmp_path, SWEEP.name, spec=sweep_document(SWEEP), environment={"fingerprint": "kind"}
    )
    with made:
        yield made


def study(tmp_path: Path, kind: str = "kind") -> Ledger:
    return ledger(f"journal:///{tmp_path}/study", worker=Worker.here(kind))


def finish(book: Ledger, index: int) -> str:
    """Enter the result of a point; return its trial id."""
    lease = begin(book, index)
    assert lease is not None
    assert book.finish(lease, [result(index)])
    return lease.trial_id


def test_new_records_of_this_kind_of_machine_are_gathered_once(
    tmp_path: Path, directory: RunDirectory
) -> None:
    book = study(tmp_path)
    expected = [finish(book, 0), finish(book, 1)]
    finish(study(tmp_path, "unlike"), 2)
    gathered = gather(book, directory)
    assert [record.trial_id for record in gathered] == expected
    assert {record.run_id for record in gathered} == {directory.run_id}
    assert directory.records() == gathered
    assert gather(book, directory) == []


def test_each_other_kind_of_machine_gets_a_directory_beside_this_one(
    tmp_path: Path, directory: RunDirectory
) -> None:
    mine, theirs = study(tmp_path), study(tmp_path, "unlike")
    theirs.join({"fingerprint": "unlike", "cores": 7})
    finish(mine, 0)
    expected = [finish(theirs, 1)]
    assert begin(theirs, 2) is not None, "what runs has no records yet"
    assert begin(study(tmp_path, "idle"), 3) is not None
    for _ in range(2):
        (path,) = gather_elsewhere(mine, directory, SWEEP)
        assert path == directory.path.with_name(f"{directory.run_id}@unlike")
        assert [record.trial_id for record in load_records(path)] == expected
    assert load_environment(path)["cores"] == 7
    assert directory.records() == []


def test_on_one_kind_of_machine_there_is_nothing_elsewhere(tmp_path: Path, directory: RunDirectory) -> None:
    book = study(tmp_path)
    finish(book, 0)
    assert gather_elsewhere(book, directory, SWEEP) == []


def test_the_first_repeats_in_a_directory_make_a_lost_study_again(
    tmp_path: Path, directory: RunDirectory
) -> None:
    here = {"run_id": directory.run_id}
    directory.append(result(0, **here))
    directory.append(result(1, **here, outcome="oom", timing=None, memory=None, error=Failure("oom", "x")))
    directory.append(result(2, **here, repeat=1))
    directory.append(result(3, **here, outcome="invalid", timing=None, memory=None))
    directory.append(result(4, **here, trial_id="abcdefabcdef"))
    book = study(tmp_path)
    finish(book, 5)
    adopt(book, directory, SPACE)
    entries = book.entries()
    assert [entry.point for entry in entries] == [POINTS[5], POINTS[0], POINTS[1]]
    assert not any(entry.running for entry in entries)
    adopt(study(tmp_path), directory, SPACE)
    assert len(book.entries()) == 3, "what the study has is not entered again"


def test_points_that_cannot_exist_are_recorded_once_with_the_reason(directory: RunDirectory) -> None:
    for _ in range(2):
        record_invalid(SPACE, directory)
        records = directory.records()
        assert load_records(directory.path) == records
        assert len((directory.path / TRIALS).read_text().splitlines()) == len(records)
        assert [record.axes["reduce_bucket_size"] for record in records] == [10_000, 100_000, 1_000_000]
        for record in records:
            assert (record.outcome, record.repeat, record.run_id) == ("invalid", 0, directory.run_id)
            assert record.axes["zero_stage"] == 0
            assert record.error is not None
            assert "offload_optimizer" in record.error.message


def test_of_points_that_cannot_exist_a_thousand_are_recorded(
    directory: RunDirectory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "fsync", lambda file: None)
    sizes = list(range(10_000, 11_001))
    axes = {"zero_stage": [0], "offload_optimizer": ["none", "cpu"], "reduce_bucket_size": sizes}
    record_invalid(Space(small_sweep(axes=axes)), directory)
    assert len(directory.records()) == 1000 < len(sizes)


def test_of_a_space_that_cannot_be_listed_no_invalid_points_are_recorded(directory: RunDirectory) -> None:
    record_invalid(Space(ranged()), directory)
    assert directory.records() == []
