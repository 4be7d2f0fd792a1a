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
from zbench.errors import DamagedReferenceError
from zbench.verify.trajectory import Reference, Trajectory, digest, load_reference, save_reference
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
    for run in (saved, loaded):
        assert (run.plain.names, run.inputs) == (("a/b", "scalar"), {"their_model.py": "abc"})
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


@given(st.lists(st.integers(-(2**31), 2**31 - 1), min_size=1, max_size=300), st.data())
def test_one_changed_element_always_changes_the_digest(bits: list[int], data: st.DataObject) -> None:
    tensor = torch.tensor(bits, dtype=torch.int32).view(torch.float32)
    place = data.draw(st.integers(0, len(bits) - 1))
    flipped = tensor.clone()
    flipped.view(torch.int32)[place] ^= 1 << data.draw(st.integers(0, 30))
    assert digest(flipped) != digest(tensor)
    assert digest(tensor.clone()) == digest(tensor)


@pytest.mark.parametrize("size", [1, 2, 3, 65_535, 65_536, 65_537, 2_097_152, 2_097_155])
def test_block_boundaries_hide_nothing(size: int) -> None:
    values = torch.randn(size, generator=torch.Generator().manual_seed(size))
    for place in {0, size // 2, size - 1}:
        changed = values.clone()
        changed[place] = torch.nextafter(changed[place], torch.tensor(9.0))
        assert digest(changed) != digest(values)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (torch.arange(200_000), torch.arange(200_000).roll(1)),
        (torch.tensor([0.0]), torch.tensor([-0.0])),
        (torch.ones(8), torch.ones(8, dtype=torch.bfloat16)),
    ],
    ids=["order", "sign_of_zero", "dtype"],
)
def test_order_signs_and_the_dtypes_bits_count(one: torch.Tensor, other: torch.Tensor) -> None:
    assert digest(one) != digest(other)


def test_threads_strides_and_shape_do_not_matter() -> None:
    values = torch.randn(300, 500, generator=torch.Generator().manual_seed(0))
    before = torch.get_num_threads()
    digests = set()
    try:
        for threads in (1, 2):
            torch.set_num_threads(threads)
            digests |= {digest(values), digest(values.reshape(-1)), digest(values.t().contiguous().t())}
    finally:
        torch.set_num_threads(before)
    assert len(digests) == 1


@pytest.mark.parametrize(
    ("tensor", "expected"),
    [
        (torch.arange(7, dtype=torch.uint8), -3626877798812471552),
        (torch.tensor([1.0, -0.0]), 5739072699745959936),
        (torch.arange((1 << 20) + (1 << 15) + 5), -6293506634313558112),
    ],
    ids=["part_of_a_word", "one_word", "several_spans"],
)
def test_the_digest_is_the_same_in_every_version(tensor: torch.Tensor, expected: int) -> None:
    assert digest(tensor) == expected
