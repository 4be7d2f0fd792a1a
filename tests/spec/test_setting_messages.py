"""A mistake in a `--set` or in a variable gets one message that names it."""

from collections.abc import Callable

import pytest

from zbench.spec.problems import shown

Refusal = Callable[..., str]


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ("steps", "--set steps: expected KEY=VALUE, such as --set zero_stage=1"),
        ("stepz=3", "--set stepz=3: stepz: unknown key 'stepz' (did you mean 'steps'?)"),
        ("steps=x", "--set steps=x: run.steps: expected a whole number, got 'x'; for example `steps: 8`"),
        (
            "steps=[1",
            "--set steps=[1: not YAML: expected ',' or ']', but got '<stream end>'; correct the syntax",
        ),
        (
            "search.trial=3",
            "--set search.trial=3: search.trial: unknown key 'trial' (did you mean 'trials'?) in search",
        ),
        (
            "axes.zero_stage=[]",
            "--set axes.zero_stage=[]: axes.zero_stage: this axis is empty; give it a value or remove it",
        ),
        (
            "axes.zero_stage=[0, 9]",
            "--set axes.zero_stage=[0, 9]: axes.zero_stage[1]: expected 0, 1, 2 or 3, got 9;"
            " for example `zero_stage: 0`",
        ),
        (
            "name=a b",
            "--set name=a b: name: expected letters, digits, '.', '_' and '-' (at most 100, not beginning"
            " with '.' or '-'), got 'a b'; for example `name: sweep`",
        ),
        (
            "engine.zero_stag=1",
            "--set engine.zero_stag=1: engine.zero_stag: unknown key 'engine.zero_stag'"
            " (did you mean 'zero_stage'?); axes name keys of workload, run or engine",
        ),
        (
            "objektive=verdict",
            "--set objektive=verdict: objektive: unknown key 'objektive' (did you mean 'objective'?)",
        ),
        (
            "exclude.zero_stage=1",
            "--set exclude.zero_stage=1: exclude.zero_stage: exclude holds no further keys;"
            " write exclude=VALUE",
        ),
    ],
)
def test_settings_name_themselves(setting: str, message: str, refusal: Refusal) -> None:
    assert refusal("axes: {zero_stage: [0, 1]}\n", setting) == message


@pytest.mark.parametrize(
    ("text", "setting", "key"),
    [
        ("run: 3\n", "steps=1", "run"),
        ("engine: {optimizer: 3}\n", "optimizer.lr=1", "engine.optimizer"),
    ],
)
def test_nothing_is_set_in_what_is_no_mapping(text: str, setting: str, key: str, refusal: Refusal) -> None:
    assert refusal(text, setting) == (
        f"--set {setting}: {key}: is not a mapping in the file, so nothing can be set in it; correct the file"
    )


def test_environment_variables_name_themselves(refusal: Refusal) -> None:
    text = "axes: {zero_stage: [0, 1]}\n"
    assert refusal(text, ZBENCH_STEPS="x") == (
        "ZBENCH_STEPS: run.steps: expected a whole number, got 'x'; for example `steps: 8`"
    )
    assert refusal(text, ZBENCH_STEPZ="1") == (
        "ZBENCH_STEPZ: unknown key 'stepz' (did you mean 'steps'?); rename or unset this variable"
    )


def test_a_value_is_shown_by_its_first_60_characters() -> None:
    assert shown("x" * 58) == f"'{'x' * 58}'"
    assert shown("x" * 59) == f"'{'x' * 56}..."
