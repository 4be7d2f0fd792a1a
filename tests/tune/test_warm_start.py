"""Earlier results teach where they are of the same configurations on the same kind of machine."""

from pathlib import Path

import pytest

from zbench.errors import UsageError
from zbench.record.store import RunDirectory
from zbench.spec.sweep import SweepSpec, sweep_document
from zbench.spec.trial import TrialSpec
from zbench.tune.objective import Scorer
from zbench.tune.space import Space, point_key
from zbench.tune.warm_start import priors_from

from .fakes import FakeRunner, small_sweep


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
    found, remarks = priors_from(paths, Space(sweep), Scorer(sweep.objective), "kind")
    return {point_key(prior.point) for prior in found}, remarks


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
