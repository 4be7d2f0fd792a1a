"""A reference survives its file, bit for bit; any other file judges, or is refused with the remedy."""

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
from zbench.errors import DamagedReferenceError
from zbench.verify.trajectory import Reference, Trajectory, load_reference, save_reference
from zbench.verify.verdict import judge

MANY = int(os.environ.get("ZBENCH_FUZZ", "5000"))


def example() -> Reference:
    plain = Trajectory(
        names=("a/b", "scalar"),
        losses=torch.rand(3, 2, 1, dtype=torch.float64),
        grad_norms=torch.tensor([1.0, float("inf"), float("nan")], dtype=torch.float64),
        digests=torch.tensor([[-(2**63), 2**63 - 1]] * 3),
        parameters={"a/b": torch.randn(2, 3).t(), "scalar": torch.tensor(-0.0)},
        moments={"a/b": torch.randn(3, 2)},
        skipped=(0, 2),
    )
    truth = {
        "a/b": torch.randn(3, 2, dtype=torch.float64),
        "scalar": torch.tensor(1 / 3, dtype=torch.float64),
    }
    return Reference(
        plain,
        torch.rand(2, dtype=torch.float64),
        torch.tensor([[True, False]] * 3),
        {"their_model.py": "abc"},
        truth,
        {"a/b": torch.rand(3, 2)},
    )


def test_everything_comes_back(tmp_path: Path) -> None:
    saved = example()
    save_reference(saved, tmp_path / "ref")
    loaded = load_reference(tmp_path / "ref")
    assert [path.name for path in tmp_path.iterdir()] == ["ref"]
    for found in (saved, loaded):
        assert (found.plain.names, found.inputs) == (("a/b", "scalar"), {"their_model.py": "abc"})
    torch.testing.assert_close(numbers(loaded), numbers(saved), rtol=0, atol=0, equal_nan=True)


def numbers(reference: Reference) -> dict[str, Any]:
    return asdict(replace(reference, inputs={}, plain=replace(reference.plain, names=())))


def test_another_format_is_refused_with_the_remedy(tmp_path: Path) -> None:
    save_file({"losses": torch.zeros(1)}, tmp_path / "ref", metadata={"format": "0"})
    with pytest.raises(ValueError, match="remove it and run the sweep again"):
        load_reference(tmp_path / "ref")


@pytest.mark.parametrize(
    "examples", [100, pytest.param(MANY, marks=[pytest.mark.soak, pytest.mark.timeout(3600)])]
)
def test_a_damaged_reference_judges_or_is_refused(examples: int, tmp_path: Path) -> None:
    save_reference(example(), tmp_path / "reference.safetensors")
    plain = load_reference(tmp_path / "reference.safetensors").plain
    observed = replace(plain, digests=plain.digests ^ 1)  # other bits than the reference's

    verdict = repr(judge(observed, load_reference(tmp_path / "reference.safetensors")))

    @settings(max_examples=examples, deadline=None, database=None)
    @given(data=st.data())
    def judges_or_is_refused(data: st.DataObject) -> None:
        with tempfile.TemporaryDirectory() as scratch:
            copy = Path(shutil.copy(tmp_path / "reference.safetensors", scratch))
            damage(copy, data)
            if copy.read_bytes() != (tmp_path / "reference.safetensors").read_bytes():
                with contextlib.suppress(DamagedReferenceError):
                    assert repr(judge(observed, load_reference(copy))) == verdict

    judges_or_is_refused()
