"""`run.world_size: auto`, and ranks that are more than the machine's GPUs."""

from pathlib import Path

import pytest

from zbench.spec import run
from zbench.spec.run import RunSpec


@pytest.fixture
def gpus(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Let the driver list two devices."""
    for place, model in (("1", "Example : H100"), ("0", "A100")):
        (tmp_path / "proc/driver/nvidia/gpus" / place).mkdir(parents=True)
        text = f"Model: \t\t {model}\nIRQ: \t\t 7\n"
        (tmp_path / "proc/driver/nvidia/gpus" / place / "information").write_text(text)
    monkeypatch.setattr(run, "Path", lambda place: tmp_path / place.lstrip("/"))
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)


@pytest.mark.usefixtures("gpus")
def test_gpus_are_named_as_their_driver_names_them() -> None:
    assert run.gpu_models() == ["A100", "Example : H100"]


@pytest.mark.usefixtures("gpus")
@pytest.mark.parametrize(
    ("visible", "device", "ranks"),
    [(None, "auto", 2), ("1", "auto", 1), ("0, 1,", "cuda", 2), ("", "auto", 2), ("1", "cpu", 2)],
)
def test_auto_is_one_rank_for_each_gpu_that_may_be_used_and_two_on_a_cpu(
    visible: str | None, device: str, ranks: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    if visible is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    assert RunSpec.model_validate({"world_size": "auto", "device": device}).world_size == ranks
