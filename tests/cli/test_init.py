"""`zbench init`: from what a user has to a sweep file that can be run, and shipped sweeps by name."""

import errno
import json
import os
from pathlib import Path
from typing import Any

import pytest

from zbench.spec.expand import expand
from zbench.spec.load import load_sweep
from zbench.spec.trial import TrialSpec

DEEPSPEED = {
    "train_micro_batch_size_per_gpu": 4,
    "gradient_clipping": 0.5,
    "zero_optimization": {"stage": 2, "reduce_bucket_size": 1000000},
    "scheduler": {"type": "WarmupLR"},
}

SWEEPS = Path(__file__).parents[2] / "sweeps"


def trials(file: Path) -> list[TrialSpec]:
    return expand(load_sweep(file)).trials


def written(zbench: Any, path: Path, source: str | None = None) -> tuple[TrialSpec, Any]:
    output = zbench("init", path, *(["--from", source] if source else []))
    assert output.code == 0, output.err
    return trials(path)[0], output


def test_a_first_file_is_commented_and_runs(zbench: Any, tmp_path: Path) -> None:
    written(zbench, tmp_path / "sweep.yaml")
    text = (tmp_path / "sweep.yaml").read_text()
    assert "# The model and its data." in text
    assert "name: sweep\n" in text, "the file's own name"
    assert len(trials(tmp_path / "sweep.yaml")) == 7
    assert zbench("init").code == 2, "never overwrites"
    assert zbench("plan", "sweep.yaml").code == 0
    written(zbench, tmp_path / f"{'long' * 20}.yaml")
    assert f"name: {'long' * 15}\n" in (tmp_path / f"{'long' * 20}.yaml").read_text(), "60 characters of it"


@pytest.mark.parametrize("words", [("init", "new.yaml"), ("export", "sweep.json", "--output", "new.yaml")])
def test_a_full_disk_leaves_no_part_of_a_new_file(
    zbench: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...]
) -> None:
    def full(_: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    (tmp_path / "sweep.json").write_text('{"name": "one", "workload": {"model": "mlp"}}')
    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        output = zbench(*words)
    assert (output.code, output.err.count("new.yaml cannot be written (No space left on device)")) == (2, 1)
    assert [path.name for path in tmp_path.iterdir()] == ["sweep.json"]
    assert zbench(*words).code == 0
    assert sorted(path.name for path in tmp_path.iterdir()) == ["new.yaml", "sweep.json"]


def test_from_a_file_of_another_library(zbench: Any, tmp_path: Path) -> None:
    (tmp_path / "theirs.json").write_text(json.dumps({**DEEPSPEED, "steps_per_print": 7}))
    trial, output = written(zbench, tmp_path / "a.yaml", "theirs.json")
    assert (trial.engine.gradient_clipping, trial.engine.reduce_bucket_size) == (0.5, 1_000_000)
    assert "changes the training:\n  scheduler.type: zbench keeps the learning rate constant\n" in output.err
    assert output.err.endswith("left out, as it changes neither: steps_per_print\n")
    assert {t.engine.zero_stage for t in trials(tmp_path / "a.yaml")} >= {2, 3}


def test_from_a_model_of_ones_own(zbench: Any, tmp_path: Path) -> None:
    (tmp_path / "module_of_ones_own.py").write_text(
        "import torch\ndef make_model(): return torch.nn.Linear(1, 1)\ndef broken(): raise ValueError(1)\n"
    )
    assert "ValueError: 1" in written(zbench, tmp_path / "b.yaml", "module_of_ones_own:broken")[1].err
    trial, output = written(zbench, tmp_path / "a.yaml", "module_of_ones_own:make_model")
    assert trial.workload.model == "module_of_ones_own:make_model"
    assert "does not run yet: workload.model: Linear.forward(" in output.err
    assert "does not take this micro-batch (2 tensors)" in output.err
    assert "correct `workload:` there, then `zbench sweep" in output.out
    assert "batch = model.make_batch(generator, micro_batch_size, sequence_length)" in output.err


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("missing.json", None, "no such file; expected ds_config.json, accelerate.yaml"),
        ("twice.json", '{"bf16": {}, "bf16": {}}', "twice.json: bf16: this key is given twice"),
        ("commented.json", '{"bf16": {"enabled": true}, // yes\n', "neither JSON nor Hjson"),
        ("other.json", '{"name": "x"}', "no DeepSpeed configuration"),
        ("hf:no-such-model", None, "nothing is downloaded"),
        ("json:lode", None, "module 'json' has no attribute 'lode'"),
    ],
)
def test_what_is_no_start_is_refused(
    refusal: Any, tmp_path: Path, name: str, text: str | None, message: str
) -> None:
    if text is not None:
        (tmp_path / name).write_text(text)
    assert message in refusal("init", "--from", name)
    assert not (tmp_path / "sweep.yaml").exists()


def test_shipped_sweeps_are_found_by_name_anywhere(zbench: Any, refusal: Any) -> None:
    for name in [path.stem for path in SWEEPS.glob("*.yaml")]:
        few = ["--set", "axes={zero_stage: [0]}", "--set", "exclude=[]"] if name == "zoo" else []
        assert zbench("plan", name, "--json", *few).code in (0, 2), name
    assert zbench("plan", "quickstart", "--json").document["trials"]
    assert "`zbench init` writes one" in refusal("plan", "no-such-sweep")
    assert "did you mean 'quickstart'?" in refusal("plan", "quickstrat")
