from pathlib import Path

import pytest

from zbench.spec.dump import dump_sweep
from zbench.spec.load import load_sweep

SWEEPS = sorted((Path(__file__).parents[2] / "sweeps").glob("*.yaml"))


@pytest.mark.parametrize("defaults", [True, False])
@pytest.mark.parametrize("path", SWEEPS, ids=lambda path: path.stem)
def test_a_shipped_sweep_reads_back_from_what_is_written(path: Path, defaults: bool, tmp_path: Path) -> None:
    sweep = load_sweep(path, (), {}, inputs=False)
    (tmp_path / "spec.yaml").write_text(dump_sweep(sweep, defaults=defaults))
    assert load_sweep(tmp_path / "spec.yaml", (), {}, inputs=False) == sweep
