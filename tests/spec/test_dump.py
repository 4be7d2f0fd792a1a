from pathlib import Path

import pytest

from zbench.spec.load import load_sweep
from zbench.spec.sweep import SweepSpec, dump_sweep, sweep_document

SWEEPS = sorted((Path(__file__).parents[2] / "sweeps").glob("*.yaml"))


@pytest.mark.parametrize("defaults", [True, False])
@pytest.mark.parametrize("path", SWEEPS, ids=lambda path: path.stem)
def test_a_shipped_sweep_reads_back_from_what_is_written(path: Path, defaults: bool, tmp_path: Path) -> None:
    sweep = load_sweep(path, (), {}, inputs=False)
    (tmp_path / "spec.yaml").write_text(dump_sweep(sweep, defaults=defaults))
    assert load_sweep(tmp_path / "spec.yaml", (), {}, inputs=False) == sweep


def test_every_key_is_written_unless_the_defaults_are_left_out() -> None:
    sweep = SweepSpec.model_validate({"name": "one", "run": {"steps": 3}})
    assert sweep_document(sweep)["run"].items() >= {"steps": 3, "warmup_steps": 2, "repeats": 5}.items()
    assert "repeats: 5" in dump_sweep(sweep)
    assert sweep_document(sweep, defaults=False) == {"name": "one", "run": {"steps": 3}}


def test_a_range_is_written_with_its_own_keys_only() -> None:
    axis = {"low": 1e-5, "high": 1e-2, "log": True}
    sweep = SweepSpec.model_validate({"search": {"method": "tpe"}, "axes": {"lr": axis}})
    assert sweep_document(sweep)["axes"] == {"lr": axis}
