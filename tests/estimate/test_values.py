"""Values that a simulation knows, and values that it refuses."""

import os
import sys
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch._dynamo.utils import counters
from torch._subclasses.fake_tensor import FakeTensorMode, UnsupportedOperatorException

from zbench.estimate.client import Simulator, SimulatorProcess
from zbench.estimate.reading import answer, explained
from zbench.estimate.result import Estimate, NotSimulated
from zbench.estimate.simulate import SimulatedLedger, simulate
from zbench.spec.run import RunSpec
from zbench.spec.trial import TrialSpec

_SCALE = torch.tensor(2.0)


class Scaled(nn.Linear):
    """A model that multiplies by a tensor which was made before the simulation."""

    def __init__(self) -> None:
        super().__init__(4, 1)

    def make_batch(self, generator: torch.Generator, size: int, length: int) -> tuple[Tensor]:
        """Return one tensor."""
        return (torch.randn(size, 4, generator=generator),)

    def forward(self, batch: Tensor) -> Tensor:
        """Return its own loss. What a model prints is no answer."""
        os.write(1, b"printed")
        return (super().forward(batch) * _SCALE).mean()


def trial(**engine: object) -> TrialSpec:
    workload = {"options": {"layers": 1, "width": 32, "heads": 2}, "sequence_length": 16}
    return TrialSpec.model_validate({"workload": workload, "run": {"world_size": 64}, "engine": engine})


def test_whole_numbers_of_shapes_are_known_computed_ones_are_not() -> None:
    ledger = SimulatedLedger()
    with FakeTensorMode(), ledger.watching(), ledger.during("forward"):
        assert int((torch.arange(5) + 1).sum()) == 15
        with pytest.raises(Exception, match="_local_scalar_dense") as told:
            bool(torch.randn(3).sum() > 0)
    assert "control flow on shapes" in explained(told.value)


def test_computed_values_read_as_zero_after_the_forward() -> None:
    """A norm or a flag that the engine reads: it must go on, and no value may change its allocations."""
    ledger = SimulatedLedger()
    with FakeTensorMode(), ledger.watching(), ledger.during("optimizer"):
        values = [torch.randn(3).sum().to(dtype).item() for dtype in (torch.bool, torch.float64, torch.int32)]
        same = torch.equal(torch.randn(3), torch.randn(3))
    assert [(type(value), value) for value in values] == [(bool, False), (float, 0.0), (int, 0)]
    assert same, "ranks agree"


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (RuntimeError("one\ntwo"), "RuntimeError: one"),
        (RuntimeError("no fake impl for mine::twice here"), "the operator mine::twice has no fake kernel"),
        (UnsupportedOperatorException("aten.x"), "the operator aten.x has no fake kernel"),
    ],
)
def test_why_a_simulation_failed_is_said_in_one_line(error: Exception, text: str) -> None:
    assert explained(error).split(";")[0] == text


@pytest.mark.check
def test_a_process_that_ends_is_replaced_and_answers_are_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trials = [trial(zero_stage=stage) for stage in (0, 1, 0)]
    with Simulator(tmp_path, jobs=1) as simulator:
        with monkeypatch.context() as patch:
            patch.setattr(sys, "executable", "/bin/true")
            assert isinstance(simulator.of(trial(zero_stage=3)), NotSimulated)
        first, second, again = simulator.each(trials)
        assert isinstance(first, Estimate)
        assert isinstance(second, Estimate)
        assert again is first
        assert len(simulator._children) == 2
    assert not any(child.alive for child in simulator._children)


def test_an_estimate_says_what_the_peak_is_made_of() -> None:
    """On the device and on the host; the largest allocations first, allocations of one kind together."""
    estimate = answer(trial(zero_stage=2, offload_optimizer="cpu"), Path())
    assert isinstance(estimate, Estimate)
    assert sum(estimate.device.values()) == estimate.peak_device_bytes
    assert sum(estimate.host.values()) == estimate.peak_host_bytes
    assert {"master", "moments"} <= estimate.host.keys()
    assert estimate.phase == "backward"
    assert estimate.build_device_bytes > 4 * 25_000, "the whole model"
    assert isinstance(answer(trial().model_copy(update={"run": RunSpec()}), Path()), Estimate)
    sizes = [each.nbytes for each in estimate.alive]
    assert sizes == sorted(sizes, reverse=True)
    assert min(sizes) > 0
    assert len(sizes) == 20
    assert 0.9 * estimate.peak_device_bytes < sum(sizes) <= estimate.peak_device_bytes
    (batch,) = (each for each in estimate.alive if each.shape == (2, 16))
    assert (batch.count, batch.nbytes, batch.dtype) == (2, 2 * 8 * 2 * 16, "int64"), "tokens and targets"
    assert all(len(each.where.split("/")) <= 3 for each in estimate.alive)


def test_a_simulation_that_ends_its_process_says_how(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    interpreter = tmp_path / "python"
    interpreter.write_text(f"#!{sys.executable}\nimport os\nos.kill(os.getpid(), 9)\n")
    interpreter.chmod(0o700)
    monkeypatch.setattr(sys, "executable", str(interpreter))
    child = SimulatorProcess()
    assert child.ask(trial(), tmp_path) == NotSimulated("torch ended the simulation (SIGKILL)")
    assert not child.alive


@pytest.mark.check
def test_one_process_answers_again_and_knows_a_models_own_constants() -> None:
    workload = {"model": "tests.estimate.test_values:Scaled"}
    constant = TrialSpec.model_validate({"workload": workload, "run": {"world_size": 2}, "engine": {}})
    child = SimulatorProcess()
    answers = [child.ask(constant, Path.cwd()) for _ in range(2)]
    assert all(isinstance(answer, Estimate) for answer in answers), answers
    assert child.alive
    child.close()
    assert not child.alive


def test_a_shape_of_data_is_named_with_the_remedy() -> None:
    with FakeTensorMode(), SimulatedLedger().watching(), pytest.raises(Exception, match="nonzero") as told:
        torch.randn(3).nonzero()
    assert "aten.nonzero.default" in explained(told.value)
    assert "fixed shape" in explained(told.value)


@pytest.mark.check
def test_a_compiled_models_gradients_are_reduced() -> None:
    counters.clear()
    step, eager = (simulate(trial(zero_stage=1, compile=how), Path()) for how in ("aot_eager", "off"))
    assert counters["stats"]["unique_graphs"] > 0
    assert step.traffic == eager.traffic
    assert step.ledger.peak_of_both < eager.ledger.peak_of_both
