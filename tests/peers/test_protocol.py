"""The engines that zbench brings keep the protocol; an engine that breaks it fails its suite."""

import itertools
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, ClassVar

import pytest
from torch import nn

from tests.shared_processes import SharedProcesses
from tests.world import local_runner
from zbench.launch.trial import TrialRunner
from zbench.peers import ddp
from zbench.peers.stepping import TorchEngine
from zbench.testing.engine import EngineSuite
from zbench.testing.ranks import RankPool

ROOT = Path(__file__).parents[2]


class Suite(EngineSuite):
    folder = ROOT

    @pytest.fixture
    def runner(self, tmp_path: Path, shared_processes: SharedProcesses) -> Iterator[TrialRunner]:
        with pytest.MonkeyPatch.context() as patch:
            shared_processes.lend_by(patch)
            with local_runner(tmp_path, ROOT, rerun_disturbed=False) as runner:
                yield runner


class TestBuiltin(Suite):
    engine = "builtin"
    keys: ClassVar[Mapping[str, Any]] = {"zero_stage": 3}


class TestDdp(Suite):
    engine, resumes = "ddp", False


class TestZeroRedundancy(Suite):
    pytestmark = pytest.mark.check
    engine, resumes = "zero_redundancy", False
    keys: ClassVar[Mapping[str, Any]] = {"zero_stage": 1}


class TestFsdp2(Suite):
    pytestmark = pytest.mark.check
    engine, resumes = "fsdp2", False
    keys: ClassVar[Mapping[str, Any]] = {"zero_stage": 3}


class Forgetful(Suite):
    engine = "tests.peers.test_protocol:forgetful"


def forgetful(model: nn.Module, *rest: Any, **more: Any) -> TorchEngine:
    """Return DDP that loses the second micro-batch of each step."""
    engine = ddp.build_engine(model, *rest, **more)
    backward, counted = engine.backward, itertools.count()
    vars(engine)["backward"] = lambda loss, last=None: backward(loss * float(next(counted) % 2 == 0), last)
    return engine


def test_an_engine_that_loses_a_micro_batch_fails_the_suite(ranks: RankPool) -> None:
    suite = Forgetful()
    with pytest.raises(AssertionError, match="comparison failed"):
        suite.test_a_step_tells_the_norm_over_all_ranks_and_whether_it_clipped(ranks)
    suite.test_parameters_are_whole_float32_copies_on_every_rank(ranks)
