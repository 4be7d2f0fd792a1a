"""What is measured of healthy engines, and what its table says of a false verdict."""

from typing import Any

import pytest

from zbench.bench import healthy


def found(**changed: Any) -> dict[str, Any]:
    one = {
        "trial_id": "a", "engine": "ddp", "zero_stage": 0, "offload_optimizer": "none", "reduce_at": "auto",
        "dtype": "float32", "accumulation": 1, "model": "gpt", "layers": 2, "steps": 3, "outcome": "ok",
        "error": None, "verdict": "equivalent", "error_ratio": 1.5, "worst_parameter": "head.weight",
    }  # fmt: skip
    return one | changed


def test_every_engine_takes_its_turn_before_any_comes_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(healthy, "STEPS", (1, 50))
    monkeypatch.setattr(healthy, "LAYERS", (2, 24))
    trials = healthy.trials(None, strength=6)
    assert len({trial.trial_id for trial in trials}) == len(trials)
    count = len(healthy.BUILT_IN) + len(healthy.TORCHS)
    engines = {trial.engine.model_dump_json(exclude={"dtype", "gradient_accumulation_steps"})
               for trial in trials[:count]}  # fmt: skip
    assert len(engines) == count
    assert {trial.engine.dtype for trial in trials if trial.engine.engine == "ddp"} == {"float32"}
    work = [t.workload.options["layers"] * t.run.steps * t.engine.gradient_accumulation_steps for t in trials]
    assert max(work) <= healthy.LONGEST


def test_a_false_verdict_and_a_failure_are_named() -> None:
    kept = [
        found(),
        found(error_ratio=1.0, verdict="identical"),
        found(verdict="drifted", error_ratio=7.25),
        found(engine="fsdp2", outcome="crashed", verdict="unchecked", error_ratio=None, error="no room"),
    ]
    design = healthy.trials(None)
    text = healthy.tables(kept, design)
    assert "combinations of 2 choices" in text
    assert "1 of 3 were called `drifted` or `wrong`; 1 gave no ratio." in text
    assert "| ddp | float32 | 3 | 1 | 1.50 | 7.25 | 7.25 |" in text
    assert "steps=3: 7.25, worst head.weight" in text
    assert "crashed: no room" in text


def test_every_two_choices_meet() -> None:
    trials = healthy.trials(None)
    engines = {(t.engine.zero_stage, t.engine.engine, t.run.steps) for t in trials}
    assert engines >= {(stage, "builtin", steps) for stage in range(4) for steps in healthy.STEPS}
    assert {(t.workload.options["layers"], t.run.steps) for t in trials} >= {(2, 200), (8, 200), (24, 50)}
    assert {(t.engine.dtype, t.run.steps) for t in trials} >= {("bfloat16", steps) for steps in healthy.STEPS}
    assert len(trials) < len(healthy.trials(None, strength=6)) / 10


def test_what_is_measured_adds_a_combination_each_time() -> None:
    design = healthy.trials(None)
    every = {each for trial in design for each in healthy.combinations_in(healthy.asked(trial), 2)}
    measured: list[dict[str, Any]] = [found()]
    assert len(healthy.combinations_in(measured[0], 2) & every) == 15
    while left := healthy.missing(design, measured, 2):
        measured.append(healthy.asked(left[0]))
    assert len(measured) <= len(design) + 1
    assert f"Of the {len(every)} combinations" in healthy.tables([], design)
    assert {each for one in measured for each in healthy.combinations_in(one, 2)} >= every
