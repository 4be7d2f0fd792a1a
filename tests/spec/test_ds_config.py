"""`ds_config`: the file decides what it says, the sweep fills in the rest, and both may not disagree."""

import json
from pathlib import Path
from typing import Any

import pytest

from zbench.errors import SpecError
from zbench.spec.environments import Environment
from zbench.spec.expand import Expansion, expand
from zbench.spec.load import sweep_from_mapping
from zbench.spec.trial import TrialSpec

THEIRS: dict[str, Any] = {
    "train_micro_batch_size_per_gpu": 4,
    "gradient_accumulation_steps": 2,
    "gradient_clipping": 0.5,
    "zero_optimization": {"stage": 2, "round_robin_gradients": True},
    "optimizer": {"type": "AdamW", "params": {"lr": 3e-4}},
    "wall_clock_breakdown": False,
}


@pytest.fixture(autouse=True)
def _deepspeed_is_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let `engine_python: x` be an environment that has DeepSpeed."""
    there = Environment(Path("x"), (3, 11, 0), "cpython-311", {"deepspeed": "9"}, frozenset())
    monkeypatch.setattr("zbench.spec.peers.elsewhere", lambda *_: there)


def expanded(theirs: object, axes: dict[str, list[Any]] | None = None, **engine: Any) -> Expansion:
    document = {
        "run": {"world_size": 2},
        "engine": {"engine": "deepspeed", "engine_python": "x", "ds_config": theirs} | engine,
        "axes": axes or {},
    }
    return expand(sweep_from_mapping(document, environ={}))


def the_trial(theirs: object, **engine: Any) -> TrialSpec:
    (trial,) = expanded(theirs, **engine).trials
    return trial


def test_the_reference_trains_what_the_file_says() -> None:
    engine = the_trial(THEIRS).engine
    assert (engine.zero_stage, engine.gradient_clipping, engine.gradient_accumulation_steps) == (2, 0.5, 2)
    assert (engine.optimizer.lr, engine.optimizer.weight_decay) == (3e-4, 0.0)
    assert engine.reduce_bucket_size == 500_000_000, "DeepSpeed's default, since the file has none"
    assert the_trial(THEIRS).workload.micro_batch_size == 4


def handed(theirs: object, **engine: Any) -> Any:
    """Return what DeepSpeed is given."""
    return the_trial(theirs, **engine).engine.ds_config


def test_what_is_handed_to_deepspeed_is_the_users_own(tmp_path: Path) -> None:
    theirs = handed(THEIRS)
    assert theirs["zero_optimization"] == {"stage": 2, "round_robin_gradients": True}, "nothing is added"
    assert theirs["wall_clock_breakdown"] is False
    (tmp_path / "ds.json").write_text(json.dumps(THEIRS))
    assert the_trial(str(tmp_path / "ds.json")).trial_id == the_trial(THEIRS).trial_id
    with pytest.raises(SpecError, match="a ds_config is DeepSpeed's"):
        expanded(THEIRS, engine="ddp")


def test_axes_fill_in_missing_keys_and_auto() -> None:
    theirs = THEIRS | {"zero_optimization": {"stage": "auto"}, "gradient_clipping": "auto"}
    axes = {"zero_stage": [1, 3], "reduce_bucket_size": [1000]}
    configs: list[Any] = [t.engine.ds_config for t in expanded(theirs, axes, gradient_clipping=0.25).trials]
    zero = [{"stage": stage, "reduce_bucket_size": 1000} for stage in (1, 3)]
    assert [one["zero_optimization"] for one in configs] == zero
    assert {one["gradient_clipping"] for one in configs} == {0.25}


def test_keys_of_the_sweep_may_not_contradict_the_file() -> None:
    engine: Any = the_trial(THEIRS, reduce_bucket_size=1000).engine
    assert engine.reduce_bucket_size == engine.ds_config["zero_optimization"]["reduce_bucket_size"] == 1000
    with pytest.raises(SpecError, match=r"is 1\.0, and ds_config says gradient_clipping: 0\.5"):
        expanded(THEIRS, gradient_clipping=1.0)
    without = {key: value for key, value in THEIRS.items() if key != "gradient_accumulation_steps"}
    assert the_trial(without).engine.gradient_accumulation_steps == 1, "DeepSpeed's default"


def test_two_values_for_one_key_are_no_override() -> None:
    expansion = expanded(THEIRS, {"zero_stage": [0, 2]})
    assert [trial.engine.zero_stage for trial in expansion.trials] == [2]
    assert [point.reason for point in expansion.invalid] == [
        "engine.zero_stage is 0, and ds_config says zero_optimization.stage: 2;"
        ' write "auto" there, or leave zero_stage out'
    ]


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"scheduler": {"type": "WarmupLR"}}, "scheduler.type"),
        ({"optimizer": {"type": "Lion"}}, "computes Adam and AdamW only"),
        ({"fp16": {"enabled": True}}, "loss scale"),
        ({"train_batch_size": 17}, "which is 16"),
        ({"bf16": {"enabled": True}}, "no access to its float32 master weights"),
    ],
)
def test_what_has_no_reference_is_invalid_with_its_reason(change: dict[str, Any], reason: str) -> None:
    with pytest.raises(SpecError, match=reason):
        expanded(THEIRS | change)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{"gradient_clipping": 1.0, // off\n "train_batch_size": ]}', ":2: neither JSON nor Hjson"),
        ('{"x": {"y": [0, Infinity]}}', "ds_config: x.y[1]: expected a finite number, got inf; correct it"),
    ],
)
def test_a_broken_file_is_one_message_with_its_line(text: str, message: str, tmp_path: Path) -> None:
    (tmp_path / "ds.json").write_text(text)
    with pytest.raises(SpecError) as error:
        expanded(str(tmp_path / "ds.json"))
    assert message in str(error.value)
    if "Hjson" in message:
        assert (error.value.file, error.value.line) == (str(tmp_path / "ds.json"), 2)
