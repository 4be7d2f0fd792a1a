"""`torch.set_default_device` is for the user's tensors: the engine names the device of each of its own."""

import ast
from pathlib import Path

import pytest

import zbench.engine
from tests.engine.covering import by_default
from tests.engine.plain import assert_same
from tests.engine.safety.plainly import STAGES
from zbench.testing.ranks import RankPool

FACTORIES = ["arange", "as_tensor", "empty", "eye", "full", "linspace"]
FACTORIES += ["ones", "rand", "randint", "randn", "tensor", "zeros"]


@pytest.mark.parametrize("k", by_default(lambda k: k > 3, ((k,) for k in range(len(STAGES)))))
def test_another_default_device_changes_nothing(ranks: RankPool, k: int, tmp_path: Path) -> None:
    case = "tests.engine.safety.ranked:with_default_device"
    runs = [ranks.run(2, case, STAGES[k], device, str(tmp_path)) for device in ("cpu", "meta")]
    for here, elsewhere in zip(*runs, strict=True):
        assert_same(elsewhere, here)


def test_every_tensor_that_the_engine_makes_names_its_device() -> None:
    """Also those that only a GPU needs, where `cuda` as the default device is usual."""
    (folder,) = zbench.engine.__path__
    unnamed = [
        f"{path}:{node.lineno}"
        for path in Path(folder).rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Call) and ast.unparse(node.func) in {f"torch.{name}" for name in FACTORIES}
        if "device" not in {keyword.arg for keyword in node.keywords}
    ]
    assert not unnamed
