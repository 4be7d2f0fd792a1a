"""The suite of engines: whether an engine that `engine.engine` names keeps `TrainingEngine`.

from zbench.testing.engine import EngineSuite, ranks  # noqa: F401 - `ranks` is a fixture

class TestMyEngine(EngineSuite):
    engine = "my_package.engine:build"
"""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch
import torch.distributed as dist
from torch import Tensor

from zbench.engine.assembly.build import Instruments
from zbench.engine.protocols import StepInfo
from zbench.launch.process.local import LocalExecutor
from zbench.launch.trial import TrialRunner
from zbench.measure.clock import PhaseClock
from zbench.spec.trial import TrialSpec
from zbench.testing.ranks import RankPool, ranks
from zbench.worker.loop import Trainer
from zbench.workloads import Workload, build_workload

__all__ = ["EngineSuite", "ranks"]

MODEL = {
    "model": "mlp",
    "options": {"hidden": 25, "vocabulary": 31},  # no size is a multiple of the number of ranks
    "sequence_length": 8,
    "micro_batch_size": 2,
}
CLIPPED = {"gradient_accumulation_steps": 2, "gradient_clipping": 0.05}
Choice = Mapping[str, Any]


class EngineSuite:
    """Conformance tests of an engine on two ranks.

    engine: as `engine.engine` of a sweep file names it. keys: further keys of `engine`. dtypes: the values of
    `engine.dtype` that it trains in. modes: of `engine.accumulation_mode`. resumes: whether it has
    `state_dict` and `load_state_dict`. folder: where a relative module is found.
    """

    engine: ClassVar[str]
    keys: ClassVar[Choice] = {}
    dtypes: ClassVar[tuple[str, ...]] = ("float32", "bfloat16")
    modes: ClassVar[tuple[str, ...]] = ("micro_steps", "multi_backward")
    resumes: ClassVar[bool] = True
    folder: ClassVar[Path] = Path.cwd()

    @pytest.fixture
    def runner(self, tmp_path: Path) -> Iterator[TrialRunner]:
        """Return a runner of trials in processes of this machine."""
        with TrialRunner(LocalExecutor(tmp_path, self.folder), tmp_path) as runner:
            yield runner

    def test_the_verdict_is_that_it_trains_the_same_step(self, runner: TrialRunner) -> None:
        for dtype in self.dtypes:
            for mode in self.modes:
                workload = MODEL | ({"backwards_per_step": 2} if mode == "multi_backward" else {})
                keys = CLIPPED | {"dtype": dtype, "accumulation_mode": mode}
                if mode == "multi_backward":
                    del keys["gradient_accumulation_steps"]
                record = runner.run(self._trial(keys, workload))
                assert record.error is None
                assert record.correctness.verdict in ("identical", "equivalent"), (dtype, mode, record)

    def test_parameters_are_whole_float32_copies_on_every_rank(self, ranks: RankPool) -> None:
        whole, *others = self._run(ranks, "parameters_after_a_step")
        model = _workload(self._trial(CLIPPED)).make_model()
        expected = {name: tuple(p.shape) for name, p in model.named_parameters()}
        assert {name: tuple(value.shape) for name, value in whole.items()} == expected
        assert all(value.dtype == torch.float32 for value in whole.values())
        for other in others:
            assert all(torch.equal(other[name], value) for name, value in whole.items())

    def test_a_step_tells_the_norm_over_all_ranks_and_whether_it_clipped(self, ranks: RankPool) -> None:
        infos: list[StepInfo] = self._run(ranks, "step_infos")
        norm = _norm_of_plain_pytorch(self._trial(CLIPPED))
        for info in infos:
            assert info.grad_norm == pytest.approx(norm, rel=1e-4)
            assert info.clipped
            assert not info.skipped

    def test_held_memory_is_bytes_by_category_and_counts_parameters(self, ranks: RankPool) -> None:
        for held in self._run(ranks, "held_bytes"):
            assert all(isinstance(size, int) and size >= 0 for size in held.values()), held
            assert sum(size for category, size in held.items() if category.endswith("parameters")) > 0

    def test_parts_of_the_optimizer_make_up_the_parameters(self, ranks: RankPool) -> None:
        parts = self._run(ranks, "optimizer_parts")
        if parts[0] is None:
            pytest.skip("the engine does not show its optimizer, so rows say what was not checked")
        whole = self._run(ranks, "parameters_after_a_step")[0]
        masters = {name: torch.full((value.numel(),), torch.nan) for name, value in whole.items()}
        has_moments = {name: torch.zeros(value.numel(), dtype=torch.bool) for name, value in whole.items()}
        for of_rank in parts:
            for place, tensors in of_rank.items():
                name, _, start = place.rpartition("@")
                part = slice(int(start), int(start) + tensors["param"].numel())
                masters[name][part] = tensors["param"].float()
                has_moments[name][part] |= {"exp_avg", "exp_avg_sq"} <= tensors.keys()
                assert len({value.numel() for value in tensors.values()}) == 1
        assert all(torch.equal(masters[name], value.reshape(-1)) for name, value in whole.items())
        assert all(bool(mask.all()) for mask in has_moments.values())

    def test_training_that_is_resumed_has_the_bits_of_training_on(self, ranks: RankPool) -> None:
        if not self.resumes:
            pytest.skip("the engine says that it cannot resume")
        for onward, resumed in self._run(ranks, "onward_and_resumed"):
            assert all(torch.equal(resumed[name], value) for name, value in onward.items())

    def _run(self, ranks: RankPool, function: str) -> list[Any]:
        return ranks.run(2, f"{__name__}:{function}", self._trial(CLIPPED), str(self.folder))

    def _trial(self, keys: Choice, workload: Choice = MODEL) -> TrialSpec:
        run = {"world_size": 2, "device": "cpu", "warmup_steps": 1, "steps": 2, "threads_per_rank": 1}
        engine = {"engine": self.engine, **keys, **self.keys}
        return TrialSpec.model_validate({"engine": engine, "workload": dict(workload), "run": run})


def parameters_after_a_step(group: dist.ProcessGroup, trial: TrialSpec, folder: str) -> dict[str, Tensor]:
    """Return the parameters of this rank after one step."""
    return _trained(group, trial, folder).engine.full_parameters()


def step_infos(group: dist.ProcessGroup, trial: TrialSpec, folder: str) -> StepInfo:
    """Return the report of this rank's first step."""
    return _step(_trainer(group, trial, folder), 0)


def held_bytes(group: dist.ProcessGroup, trial: TrialSpec, folder: str) -> dict[str, int]:
    """Return this rank's bytes by category after one step."""
    return _trained(group, trial, folder).engine.memory_by_category()


def optimizer_parts(
    group: dist.ProcessGroup, trial: TrialSpec, folder: str
) -> dict[str, dict[str, Tensor]] | None:
    """Return this rank's part of the optimizer after one step; None if the engine does not show it."""
    show = getattr(_trained(group, trial, folder).engine, "optimizer_parts", lambda: None)
    parts: dict[str, dict[str, Tensor]] | None = show()
    return parts


def onward_and_resumed(
    group: dist.ProcessGroup, trial: TrialSpec, folder: str
) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """Return the parameters after two steps, and after a step, a checkpoint, and a step in a new engine."""
    trainer, other = _trained(group, trial, folder), _trainer(group, trial, folder)
    state = {name: value.clone() for name, value in trainer.engine.state_dict().items()}
    other.engine.load_state_dict(state)
    for each in (trainer, other):
        _step(each, 1)
    return trainer.engine.full_parameters(), other.engine.full_parameters()


def _workload(trial: TrialSpec) -> Workload:
    return build_workload(trial.workload, seed=0, world_size=2, base_dir=Path())


def _trainer(group: dist.ProcessGroup, trial: TrialSpec, folder: str) -> Trainer:
    device, work = torch.device("cpu"), _workload(trial)
    return Trainer(trial, work, Path(folder), Instruments(), device=device, clock=PhaseClock(), group=group)


def _trained(group: dist.ProcessGroup, trial: TrialSpec, folder: str) -> Trainer:
    """Return a trainer after one step."""
    trainer = _trainer(group, trial, folder)
    _step(trainer, 0)
    return trainer


def _step(trainer: Trainer, step: int) -> StepInfo:
    return trainer.step(trainer.batches(step))[1]


def _norm_of_plain_pytorch(trial: TrialSpec) -> float:
    """Return the L2 norm of the first step's gradient, averaged over two ranks with two backwards each."""
    work = _workload(trial)
    model = work.make_model()
    for rank in range(2):
        for micro in range(2):
            (work.loss(model, work.batch(0, micro, rank)) / 4).backward()  # type: ignore[no-untyped-call]
    return float(torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None]).norm())
