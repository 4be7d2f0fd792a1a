"""The first steps on a GPU are deterministic and decide `identical`. Here a CPU is taken for one."""

import json
from operator import itemgetter
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import TensorDataset

from tests.worker.conftest import trial
from zbench.job.jobs import RankJob, ReferenceJob
from zbench.launch.process.client import server_environment
from zbench.worker import rank
from zbench.worker.determinism import STEPS, Determinism, steps_on
from zbench.worker.rank import run_rank, run_reference

USUAL, WARNS, RAISES = 0, 1, 2
JUDGED = itemgetter("verdict", "deterministic_steps", "first_differing_step")
TIMED = 3
ALL = 1 + TIMED + 1  # a warm-up, and one that is not timed


class Plain(nn.Module):
    """A layer and its loss."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(8, 4)

    def forward(self, inputs: Tensor, targets: Tensor) -> Tensor:
        return self.loss(self.inner(inputs), targets)

    loss = staticmethod(nn.functional.cross_entropy)


class Refused(Plain):
    """The same with an operation that torch refuses where it must be deterministic."""

    def forward(self, inputs: Tensor, targets: Tensor) -> Tensor:
        inputs = torch.zeros_like(inputs).put_(torch.arange(inputs.numel()), inputs.reshape(-1))
        return super().forward(inputs, targets)


def rows() -> TensorDataset:
    """Return data: 64 rows and their classes."""
    generator = torch.Generator().manual_seed(0)
    return TensorDataset(
        torch.randn(64, 8, generator=generator), torch.randint(4, (64,), generator=generator)
    )


def run(
    model: str, device: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> tuple[dict[str, Any], list[int]]:
    """Return what one rank reports, in this process, and the mode of each forward. Its device counts as
    `device`; where no deterministic algorithm is asked for, it rounds otherwise than the reference did.
    """
    modes = list[int]()
    loss = Plain.loss
    rounding = 0.0

    def noted(*args: Tensor) -> Tensor:
        modes.append(torch.get_deterministic_debug_mode())
        return loss(*args) * (1 + rounding * (modes[-1] == USUAL))

    monkeypatch.setattr(Plain, "loss", staticmethod(noted))
    here = "tests.worker.test_determinism:"
    monkeypatch.setattr(rank, "steps_on", lambda _: steps_on(torch.device(device)))
    workload = {"model": here + model, "data": {"dataset": here + "rows"}, "micro_batch_size": 16}
    values = trial(workload=workload, run={"world_size": 1, "steps": TIMED}).model_dump(mode="json")
    result, reference, where = (str(tmp_path / name) for name in ("result", "reference", "meeting"))
    run_reference(ReferenceJob(values, str(tmp_path), str(tmp_path), result, reference))
    rounding = 2.0**-22
    run_rank(RankJob(values, 0, 1, f"file://{where}", str(tmp_path), str(tmp_path), result, reference))
    return json.loads(Path(result).read_text()), modes


def test_the_deterministic_steps_decide_and_later_ones_run_as_users_train(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    result, modes = run("Plain", "cuda", tmp_path, monkeypatch)
    steps = [RAISES] * STEPS + [USUAL] * ALL
    again = [USUAL]
    truth = [USUAL] * len(steps)
    assert modes[: 3 * len(steps) + 1] == [*steps, *again, *truth, *steps]
    assert torch.get_deterministic_debug_mode() == USUAL
    assert len(result["timing"]["step_seconds"]) == TIMED
    assert JUDGED(result["correctness"]) == ("identical", STEPS, STEPS + 1)
    assert not any("not deterministic" in warning for warning in result["warnings"])


def test_an_operation_without_a_deterministic_form_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    result, modes = run("Refused", "cuda", tmp_path, monkeypatch)
    assert [mode for mode in modes if mode != USUAL] == [WARNS] * 2 * STEPS
    assert result["correctness"]["verdict"] == "identical"
    (warning,) = (text for text in result["warnings"] if text.startswith("not deterministic: "))
    assert "torch has no deterministic form of put_" in warning


@pytest.mark.timeout(100)  # in quadratic time this takes hours
def test_a_long_message_is_searched_once() -> None:
    def fail() -> None:
        raise RuntimeError("a " * 4_000_000)

    with pytest.raises(RuntimeError, match="a a a a"):
        Determinism(STEPS, []).retried(fail)


@pytest.mark.check
def test_on_a_cpu_no_step_is_added(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    result, modes = run("Plain", "cpu", tmp_path, monkeypatch)
    assert set(modes) == {USUAL}
    assert len(result["losses"]) == ALL
    assert JUDGED(result["correctness"]) == ("equivalent", 0, 1)


@pytest.mark.parametrize("setting", [None, ":16:8"])
def test_cublas_is_deterministic_from_its_start(setting: str | None) -> None:
    inherited = {} if setting is None else {"CUBLAS_WORKSPACE_CONFIG": setting}
    assert server_environment(None, inherited)["CUBLAS_WORKSPACE_CONFIG"] == (setting or ":4096:8")
