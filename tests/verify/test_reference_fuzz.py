"""Whatever is in a reference file: it judges, or is refused with the remedy."""

import contextlib
import os
import shutil
import tempfile
from pathlib import Path

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.engine.damage import damage
from zbench.errors import UsageError
from zbench.verify.trajectory import Reference, Trajectory, load_reference, save_reference
from zbench.verify.verdict import judge

MANY = int(os.environ.get("ZBENCH_FUZZ", "5000"))
QUIET = [HealthCheck.function_scoped_fixture, HealthCheck.too_slow]


def observed(steps: int = 3) -> Trajectory:
    """Return what a run with other bits than the reference's observed."""
    generator = torch.Generator().manual_seed(steps)
    values = {"a": torch.randn(3, 2, generator=generator), "b": torch.randn(4, generator=generator)}
    return Trajectory(
        ("a", "b"),
        torch.rand(steps, 2, 1, dtype=torch.float64, generator=generator),
        torch.rand(steps, dtype=torch.float64, generator=generator),
        torch.arange(2 * steps).view(steps, 2),
        values,
        {name: value.clone() for name, value in values.items()},
    )


def reference(steps: int = 3) -> Reference:
    plain = observed(steps)
    other = Trajectory(
        plain.names, plain.losses, plain.grad_norms, plain.digests + 1,
        {name: value + 1e-6 for name, value in plain.parameters.items()}, plain.moments,
    )  # fmt: skip
    truth = {name: value.double() + 1e-7 for name, value in plain.parameters.items()}
    return Reference(
        other,
        torch.ones(2, dtype=torch.float64),
        {"model.py": "digest"},
        truth,
        {name: value.clone() for name, value in truth.items()},
    )


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    found = tmp_path_factory.mktemp("reference") / "reference.safetensors"
    save_reference(reference(), found)
    return found


def refuses_or_judges(file: Path, data: st.DataObject) -> None:
    with tempfile.TemporaryDirectory() as scratch:
        copy = Path(shutil.copy(file, scratch))
        damage(copy, data)
        with contextlib.suppress(UsageError):
            judge(observed(), load_reference(copy))


@settings(max_examples=100, deadline=None, suppress_health_check=QUIET)
@given(data=st.data())
def test_a_damaged_reference_judges_or_is_refused(file: Path, data: st.DataObject) -> None:
    refuses_or_judges(file, data)


@pytest.mark.soak
@pytest.mark.timeout(3600)
def test_many_damaged_references_judge_or_are_refused(file: Path) -> None:
    @settings(max_examples=MANY, deadline=None, suppress_health_check=QUIET, database=None)
    @given(data=st.data())
    def fuzz(data: st.DataObject) -> None:
        refuses_or_judges(file, data)

    fuzz()


def test_a_reference_of_another_trial_is_refused(tmp_path: Path) -> None:
    save_reference(reference(steps=5), tmp_path / "other")
    with pytest.raises(UsageError, match="run the sweep again"):
        judge(observed(), load_reference(tmp_path / "other"))
