"""A reference survives its file, bit for bit."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from zbench.verify.trajectory import Reference, Trajectory, load_reference, save_reference


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
        plain, torch.rand(2, dtype=torch.float64), {"their_model.py": "abc"}, truth, {"a/b": torch.rand(3, 2)}
    )


def test_everything_comes_back(tmp_path: Path) -> None:
    saved = example()
    save_reference(saved, tmp_path / "ref")
    loaded = load_reference(tmp_path / "ref")
    assert [path.name for path in tmp_path.iterdir()] == ["ref"]
    assert (loaded.plain.names, loaded.plain.skipped, loaded.inputs) == (
        ("a/b", "scalar"),
        (0, 2),
        {"their_model.py": "abc"},
    )
    for mine, theirs in (
        (saved.plain.parameters, loaded.plain.parameters),
        (saved.plain.moments, loaded.plain.moments),
        (saved.truth, loaded.truth),
        (saved.true_moments, loaded.true_moments),
    ):
        assert mine.keys() == theirs.keys()
        assert all(torch.equal(mine[name], theirs[name]) for name in mine)
    assert torch.equal(loaded.plain.digests, saved.plain.digests)
    assert torch.equal(loaded.plain.losses, saved.plain.losses)
    assert torch.equal(loaded.travelled, saved.travelled)
    assert str(loaded.plain.grad_norms.tolist()) == "[1.0, inf, nan]"


def test_another_format_is_refused_with_the_remedy(tmp_path: Path) -> None:
    save_file({"losses": torch.zeros(1)}, tmp_path / "ref", metadata={"format": "0"})
    with pytest.raises(ValueError, match="remove it and run the sweep again"):
        load_reference(tmp_path / "ref")


STEPS, NAMES = "its steps do not belong together", "not those it names"
OTHERS, SINGLE = "not those of its parameters", "not in float32"


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"losses": torch.rand(3, 2)}, STEPS),
        ({"losses": torch.rand(2, 2, 1)}, STEPS),
        ({"losses": torch.zeros(3, 2, 1, dtype=torch.int64)}, STEPS),
        ({"grad_norms": torch.rand(2)}, STEPS),
        ({"grad_norms": torch.zeros(3, dtype=torch.int64)}, STEPS),
        ({"digests": torch.zeros(3, 1, dtype=torch.int64)}, STEPS),
        ({"digests": torch.zeros(3, 2, dtype=torch.int32)}, STEPS),
        ({"skipped": (-1,)}, STEPS),
        ({"skipped": (3,)}, STEPS),
        ({"skipped": (True,)}, STEPS),
        ({"names": ("a/b", "a/b")}, NAMES),
        ({"names": ("a/b", "c")}, NAMES),
        ({"parameters": {"a/b": torch.zeros(3, 2)}}, NAMES),
        ({"moments": {"c": torch.zeros(3, 2)}}, NAMES),
        ({"moments": {"a/b": torch.zeros(2, 3)}}, OTHERS),
        ({"moments": {"a/b": torch.zeros(3, 2, dtype=torch.int32)}}, SINGLE),
        ({"moments": {"a/b": torch.zeros(3, 2, dtype=torch.float64)}}, SINGLE),
        ({"parameters": {"a/b": torch.zeros(3, 2), "scalar": torch.tensor(1).double()}}, SINGLE),
    ],
)
def test_a_plain_run_whose_parts_do_not_belong_together_is_refused(
    changes: dict[str, Any], message: str, tmp_path: Path
) -> None:
    saved = example()
    refuse(replace(saved, plain=replace(saved.plain, **changes)), message, tmp_path)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"travelled": torch.rand(3)}, STEPS),
        ({"travelled": torch.zeros(2, dtype=torch.int64)}, STEPS),
        ({"truth": {"a/b": torch.rand(3, 2)}}, "its truth is not whole"),
        ({"truth": {"a/b": torch.rand(2, 3), "scalar": torch.rand(())}}, OTHERS),
        ({"truth": {"a/b": torch.ones(3, 2).int(), "scalar": torch.rand(())}}, OTHERS),
        ({"true_moments": {"scalar": torch.rand(())}}, "its true moments are not whole"),
    ],
)
def test_a_truth_that_does_not_belong_to_the_plain_run_is_refused(
    changes: dict[str, Any], message: str, tmp_path: Path
) -> None:
    refuse(replace(example(), **changes), message, tmp_path)


def refuse(saved: Reference, message: str, tmp_path: Path) -> None:
    save_reference(saved, tmp_path / "ref")
    with pytest.raises(ValueError, match=message):
        load_reference(tmp_path / "ref")
