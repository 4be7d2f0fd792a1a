"""What `doctor` says of engines is what `plan` says."""

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.engine.adam.host_kernels import COMPILER, HostKernels
from zbench.engine.adam import AdamTask
from zbench.spec import peers
from zbench.spec.engine import EngineSpec
from zbench.worker import facts
from zbench.worker.facts import engine_problem


def test_an_engine_that_is_not_installed_is_told_in_the_words_of_plan(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(peers.importlib.util, "find_spec", lambda name: None)
    problem = engine_problem("deepspeed")
    assert problem == "deepspeed is not installed; run `pip install deepspeed` or set engine: builtin"
    engine = EngineSpec.model_validate({"engine": "deepspeed", "zero_stage": 2})
    assert ("engine.engine", problem) in list(peers.peer_conflicts(engine))


def test_an_engine_whose_package_does_not_import_is_not_usable(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "deepspeed.py").write_text("raise ImportError('built for another torch')\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "deepspeed", raising=False)
    assert "built for another torch" in (engine_problem("deepspeed") or "")


@pytest.mark.skipif(COMPILER is None, reason="needs a C++ compiler")
@pytest.mark.parametrize("wrong", ["", "update", "norm", "launch"])
def test_every_cuda_kernel_is_run_once_beside_the_cpus(wrong: str, monkeypatch: pytest.MonkeyPatch) -> None:
    class Kernels(HostKernels):
        def update(self, tasks: Sequence[AdamTask], **options: Any) -> None:
            super().update(tasks, **options)
            if wrong == "update":
                tasks[0].slot.exp_avg[7] += 1.0

        def add_square_sums(self, grads: Sequence[Tensor], sums: Tensor) -> None:
            super().add_square_sums(grads, sums)
            if wrong == "norm":
                sums[40] += 1

    class Products:
        def __init__(self, device: torch.device) -> None:
            if wrong == "launch":
                raise RuntimeError("CUDA error 700: an illegal memory access was encountered")

        def run(self, times: int) -> None:
            assert times == 1

    monkeypatch.setattr(facts, "CudaAdam", Kernels)
    monkeypatch.setattr(facts, "Products", Products)
    problem = facts.kernels_problem(torch.device("cpu"))
    if wrong == "launch":
        assert problem == "CUDA error 700: an illegal memory access was encountered"
    else:
        assert (problem is None) == (not wrong)
