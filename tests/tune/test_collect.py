"""Between a study and run directories: unlike machines apart, nothing twice; what earlier results teach."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from zbench.errors import UsageError
from zbench.record.record import Failure
from zbench.record.store import TRIALS, RunDirectory, load_environment, load_records
from zbench.spec.sweep import SweepSpec, sweep_document
from zbench.spec.trial import TrialSpec
from zbench.tune.collect import adopt, gather, gather_elsewhere, priors_from, record_invalid
from zbench.tune.ledger import Ledger
from zbench.tune.space import Space, point_key

from .fakes import FakeRunner, small_sweep
from .test_ledger import POINTS, SPACE, SWEEP, begin, begun, ledger, result
from .test_space import ranged


@pytest.fixture
def directory(tmp_path: Path) -> Iterator[RunDirectory]:
    made = RunDirectory.create(
        tmp_path, SWEEP.name, spec=sweep_document(SWEEP), environment={"fingerprint": "kind"}
    )
    with made:
        yield made


def study(tmp_path: Path, kind: str = "kind") -> Ledger:
    return ledger(f"journal:///{tmp_path}/study", machine=kind)


def finish(book: Ledger, index: int) -> str:
    """Enter the result of a point; return its trial id."""
    lease = begun(book, index)
    assert book.finish(lease, result(index))
    return str(lease.user_attrs["trial_id"])


def test_new_records_of_this_kind_of_machine_are_gathered_once(
    tmp_path: Path, directory: RunDirectory
) -> None:
    book = study(tmp_path)
    expected = [finish(book, 0), finish(book, 1)]
    finish(study(tmp_path, "unlike"), 2)
    gathered = gather(book.of_this_kind(book.trials()), directory)
    assert [record.trial_id for record in gathered] == expected
    assert {record.run_id for record in gathered} == {directory.run_id}
    assert directory.records() == gathered
    assert gather(book.of_this_kind(book.trials()), directory) == []


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
    adopt(book, directory, SPACE)
    assert [trial.user_attrs["point"] for trial in book.trials()] == [POINTS[0], POINTS[1]]
    assert all(trial.state.is_finished() for trial in book.trials())


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


def recorded(output: Path, sweep: SweepSpec, fingerprint: str = "kind") -> Path:
    """Record every point of a sweep once."""
    facts = {"fingerprint": fingerprint}
    space = Space(sweep)
    with RunDirectory.create(output, sweep.name, spec=sweep_document(sweep), environment=facts) as directory:
        for point in space.points() or ():
            trial = space.trial(point)
            assert isinstance(trial, TrialSpec)
            directory.append(FakeRunner().run(trial))
        return directory.path


def priors(paths: list[Path], sweep: SweepSpec) -> tuple[set[str], list[str]]:
    found, remarks = priors_from(paths, Space(sweep), "kind")
    return {point_key(prior.user_attrs["point"]) for prior in found}, remarks


def test_a_run_of_the_same_sweep_teaches_every_point(tmp_path: Path) -> None:
    run = recorded(tmp_path, small_sweep())
    found, remarks = priors([run], small_sweep())
    assert found == {point_key(point) for point in Space(small_sweep()).points() or ()}
    assert remarks == []
    assert priors([tmp_path], small_sweep())[0] == found, "a directory of runs serves as well"


def test_a_run_of_another_sweep_teaches_what_is_in_this_space(tmp_path: Path) -> None:
    run = recorded(
        tmp_path, small_sweep(axes={"zero_stage": [1, 2, 3], "reduce_bucket_size": [10_000, 77_000]})
    )
    found, _ = priors([run], small_sweep())
    assert found == {
        point_key({"zero_stage": s, "offload_optimizer": "none", "reduce_bucket_size": 10_000})
        for s in (1, 2)
    }


def test_how_long_one_looked_does_not_matter(tmp_path: Path) -> None:
    run = recorded(tmp_path, small_sweep(run={"world_size": 2, "steps": 3, "seed": 5}))
    assert len(priors([run], small_sweep())[0]) == 15


@pytest.mark.parametrize(
    "changes", [{"workload": {"model": "gpt"}}, {"run": {"world_size": 4}}, {"engine": {"dtype": "bfloat16"}}]
)
def test_other_computations_teach_nothing(tmp_path: Path, changes: dict[str, object]) -> None:
    run = recorded(tmp_path, small_sweep(**changes))
    found, (remark,) = priors([run], small_sweep())
    assert found == set()
    assert "none of its configurations is in this space" in remark


def test_another_kind_of_machine_teaches_nothing(tmp_path: Path) -> None:
    run = recorded(tmp_path, small_sweep(), fingerprint="other")
    found, (remark,) = priors([run], small_sweep())
    assert found == set()
    assert "another kind of machine" in remark


def test_a_place_without_runs_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"search.warm_start: .* holds no run"):
        priors([tmp_path], small_sweep())
