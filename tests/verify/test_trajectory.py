"""A reference survives its file, bit for bit; any other judges, or is refused. Digests tell bits apart."""

import contextlib
import os
import shutil
import tempfile
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import save_file

from tests.engine.damage import damage
from tests.verify.honest import final_state
from zbench.errors import DamagedReferenceError
from zbench.verify.trajectory import (
    PER_ELEMENT,
    Reference,
    Trajectory,
    digests_read,
    load_reference,
    reading,
    require_undamaged,
    save_reference,
)
from zbench.verify.verdict import judge

MANY = int(os.environ.get("ZBENCH_FUZZ", "5000"))


def example() -> Reference:
    plain = Trajectory(
        names=("a/b", "scalar"),
        losses=torch.rand(3, 2, 1, dtype=torch.float64),
        grad_norms=torch.tensor([1.0, float("inf"), float("nan")], dtype=torch.float64),
        digests=torch.tensor([[-(2**63), 2**63 - 1]] * 3),
        skipped=(0, 2),
    )
    truth = {"a/b": torch.randn(6, dtype=torch.float64), "scalar": torch.tensor([1 / 3], dtype=torch.float64)}
    return Reference(
        plain,
        torch.rand(2, dtype=torch.float64),
        torch.tensor([[True, False]] * 3),
        {"a/b": [3, 2], "scalar": []},
        parameters={"a/b": torch.randn(6), "scalar": torch.tensor([-0.0])},
        moments={"a/b": torch.randn(6), "scalar": torch.randn(1)},
        inputs={"their_model.py": "abc"},
        truth=truth,
        true_moments={name: torch.rand_like(value) for name, value in truth.items()},
        moment_sizes=torch.rand(2, dtype=torch.float64),
        buffers={"0/mean": torch.rand(3, 2)},
    )


def test_everything_comes_back(tmp_path: Path) -> None:
    saved = example()
    save_reference(saved, tmp_path / "ref")
    loaded = load_reference(tmp_path / "ref")
    assert [path.name for path in tmp_path.iterdir()] == ["ref"]
    for run in (saved, loaded):
        assert (run.plain.names, run.inputs) == (("a/b", "scalar"), {"their_model.py": "abc"})
    torch.testing.assert_close(numbers(loaded), numbers(saved), rtol=0, atol=0, equal_nan=True)


def numbers(reference: Reference) -> dict[str, Any]:
    fields = {group: {n: t[:] for n, t in getattr(reference, group).items()} for group in PER_ELEMENT}
    empty: dict[str, Any] = {key: {} for key in PER_ELEMENT}
    return asdict(replace(reference, inputs={}, plain=replace(reference.plain, names=()), **empty)) | fields


def verdict_by(path: Path) -> str:
    """Return the verdict on values other than the reference's at `path`."""
    against = load_reference(path)
    observed = replace(against.plain, digests=against.plain.digests ^ 1)
    values = {"a/b": torch.arange(6.0), "scalar": torch.ones(1)}
    with reading(path):
        final = final_state(values, values, against)
    require_undamaged(path, [digests_read(against)])
    return repr(judge(observed, final, against))


def test_another_format_is_refused_with_the_remedy(tmp_path: Path) -> None:
    save_file({"losses": torch.zeros(1)}, tmp_path / "ref", metadata={"format": "0"})
    with pytest.raises(ValueError, match="remove it and run the sweep again"):
        load_reference(tmp_path / "ref")


@pytest.mark.parametrize(
    "examples", [100, pytest.param(MANY, marks=[pytest.mark.soak, pytest.mark.timeout(3600)])]
)
def test_a_damaged_reference_judges_or_is_refused(examples: int, tmp_path: Path) -> None:
    save_reference(example(), tmp_path / "reference.safetensors")
    verdict = verdict_by(tmp_path / "reference.safetensors")

    @settings(max_examples=examples, deadline=None, database=None)
    @given(data=st.data())
    def judges_or_is_refused(data: st.DataObject) -> None:
        with tempfile.TemporaryDirectory() as scratch:
            copy = Path(shutil.copy(tmp_path / "reference.safetensors", scratch))
            damage(copy, data)
            if copy.read_bytes() != (tmp_path / "reference.safetensors").read_bytes():
                with contextlib.suppress(DamagedReferenceError):
                    assert verdict_by(copy) == verdict

    judges_or_is_refused()
