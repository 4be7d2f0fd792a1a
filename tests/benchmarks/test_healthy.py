"""What is measured of healthy engines, and what its table says of a false verdict."""

from typing import Any

from tools.benchmarks import healthy


def found(**changed: Any) -> dict[str, Any]:
    one = {
        "trial_id": "a", "engine": "ddp", "zero_stage": 0, "offload_optimizer": "none", "reduce_at": "auto",
        "dtype": "float32", "accumulation": 1, "model": "gpt", "layers": 2, "steps": 3, "outcome": "ok",
        "error": None, "verdict": "equivalent", "error_ratio": 1.5, "worst_parameter": "head.weight",
    }  # fmt: skip
    return one | changed


def test_every_engine_takes_its_turn_before_any_comes_again() -> None:
    trials = healthy.trials(None)
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
        found(engine="fsdp2", outcome="crashed", verdict="unchecked", error_ratio=None, error="no memory"),
    ]
    text = healthy.tables(kept, healthy.trials(None))
    assert "1 of 3 were called `drifted` or `wrong`; 1 gave no ratio." in text
    assert "| ddp | float32 | 3 | 1 | 1.50 | 7.25 |" in text
    assert "drifted: 7.25, worst head.weight" in text
    assert "crashed, unchecked: no memory" in text


def test_what_is_measured_adds_a_pair_of_choices_until_every_two_met() -> None:
    design = healthy.trials(None)
    every = {pair for trial in design for pair in healthy.pairs_in(healthy.asked(trial))}
    measured: list[dict[str, Any]] = [found()]
    while left := healthy.missing(design, measured):
        measured.append(healthy.asked(left[0]))
    assert len(measured) <= len(design) + 1
    assert f"of the {len(every)} pairs" in healthy.tables([], design)
    assert {pair for one in measured for pair in healthy.pairs_in(one)} >= every
