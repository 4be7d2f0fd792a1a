"""Whatever is in the files of a checkpoint: it is loaded, or refused and nothing has changed."""

import os
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
from zbench.engine import Engine, build_engine
from zbench.engine.checkpoint import load, save
from zbench.errors import UsageError
from zbench.spec.engine import EngineSpec

MIB = 1 << 20
MANY = int(os.environ.get("ZBENCH_FUZZ", "2000"))
QUIET = [HealthCheck.function_scoped_fixture, HealthCheck.too_slow]


@pytest.fixture(scope="module")
def engine() -> Iterator[Engine]:
    """Return an engine in a world of one rank, that has taken a step."""
    built = build_engine(models.make("mlp"), EngineSpec(zero_stage=2, gradient_clipping=1.0))
    built.backward(models.loss(built.model, models.batch("mlp", 0, 0, 0)))
    built.step()
    yield built
    built.close()


@pytest.fixture(scope="module")
def checkpoint(engine: Engine, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("checkpoints") / "whole"
    save(engine, folder)
    return folder


def refuses_or_loads(engine: Engine, checkpoint: Path, data: st.DataObject) -> None:
    """Damage one file of a copy and load it."""
    before = engine.state_dict()
    generator = torch.get_rng_state()
    numbers = random.getstate()
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(shutil.copytree(checkpoint, Path(scratch) / "damaged"))
        file = data.draw(st.sampled_from(sorted(folder.iterdir())))
        damage(file, data)
        try:
            load(engine, folder)
        except UsageError:  # and no other
            after = engine.state_dict()
            assert before.keys() == after.keys()
            assert all(torch.equal(before[key], after[key]) for key in before)
            assert torch.equal(torch.get_rng_state(), generator)
            assert random.getstate() == numbers
        else:
            load(engine, checkpoint)  # the next example begins with whole numbers
    torch.set_rng_state(generator)
    random.setstate(numbers)


@settings(max_examples=60, deadline=None, suppress_health_check=QUIET)
@given(data=st.data())
def test_a_damaged_checkpoint_is_loaded_or_refused(
    engine: Engine, checkpoint: Path, data: st.DataObject
) -> None:
    refuses_or_loads(engine, checkpoint, data)


@pytest.mark.soak
@pytest.mark.timeout(3600)
def test_many_damaged_checkpoints_are_refused_without_growth(engine: Engine, checkpoint: Path) -> None:
    @settings(max_examples=MANY, deadline=None, suppress_health_check=QUIET, database=None)
    @given(data=st.data())
    def fuzz(data: st.DataObject) -> None:
        refuses_or_loads(engine, checkpoint, data)

    before = psutil.Process().memory_info().rss
    fuzz()
    assert psutil.Process().memory_info().rss - before < 256 * MIB
