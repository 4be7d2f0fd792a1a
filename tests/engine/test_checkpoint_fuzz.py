"""Whatever is in the files of a checkpoint: it is loaded, or refused and nothing has changed."""

import random
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.engine import models
from tests.engine.damage import damage
from tests.engine.plain import assert_same
from zbench.engine import Engine, build_engine
from zbench.engine.checkpoint import load, save
from zbench.errors import UsageError
from zbench.spec.engine import EngineSpec

MIB = 1 << 20


@pytest.fixture(scope="module")
def engine() -> Iterator[Engine]:
    """Return an engine in a world of one rank, that has taken a step."""
    built = build_engine(models.make("mlp"), EngineSpec(zero_stage=2, gradient_clipping=1.0))
    built.backward(models.loss(built.model, models.batch("mlp", 0, 0, 0)))
    built.step()
    yield built
    built.close()


def refuses_or_loads(engine: Engine, checkpoint: Path, data: st.DataObject) -> None:
    """Damage one file of a copy and load it."""
    before = engine.state_dict()
    generator = torch.get_rng_state()
    numbers = random.getstate()
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(shutil.copytree(checkpoint, Path(scratch) / "damaged"))
        damage(data.draw(st.sampled_from(sorted(folder.iterdir()))), data)
        try:
            load(engine, folder)
        except UsageError:  # and no other
            assert_same(engine.state_dict(), before)
            assert torch.equal(torch.get_rng_state(), generator)
            assert random.getstate() == numbers
        else:
            load(engine, checkpoint)  # the next example begins with whole numbers
    torch.set_rng_state(generator)
    random.setstate(numbers)


@pytest.mark.timeout(1800)
@pytest.mark.parametrize("examples", [50, pytest.param(2000, marks=pytest.mark.check)])
def test_a_damaged_checkpoint_is_loaded_or_refused(engine: Engine, tmp_path: Path, examples: int) -> None:
    """Memory does not grow by it."""
    save(engine, tmp_path / "whole")

    @settings(
        max_examples=examples, deadline=None, database=None, suppress_health_check=[HealthCheck.too_slow]
    )
    @given(data=st.data())
    def fuzz(data: st.DataObject) -> None:
        refuses_or_loads(engine, tmp_path / "whole", data)

    before = psutil.Process().memory_info().rss
    fuzz()
    assert psutil.Process().memory_info().rss - before < 256 * MIB
