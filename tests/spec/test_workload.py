"""Templates of `workload.command`: which names they may use, and what becomes of them."""

import pytest
from pydantic import ValidationError

from tests.making import make_trial
from zbench.spec.workload import (
    StepTimesSpec,
    WorkloadSpec,
    command_mistakes,
    values_of,
    words,
)

CONSOLE = StepTimesSpec(console="deepspeed")


def test_values_are_those_of_the_trial() -> None:
    trial = make_trial({"zero_stage": 2, "optimizer": {"lr": 0.5}}, warmup_steps=3, steps=4, seed=7)
    values = values_of(trial.config())
    expected = {"steps": 7, "warmup_steps": 3, "seed": 7, "zero_stage": 2, "lr": 0.5, "world_size": 1}
    assert expected.items() <= values.items()
    assert "optimizer" not in values


def test_a_value_stays_one_word_and_a_switch_that_is_off_none() -> None:
    assert words("run 'a {x}' {x}", {"x": "b c"}) == ["run", "a b c", "b c"]
    assert words("run {amp} --tag={tag}", {"amp": "", "tag": ""}) == ["run", "--tag="]


@pytest.mark.parametrize(
    ("command", "times", "checkpoint", "messages"),
    [
        ("train {chunks}", CONSOLE, "{output}/{chunks}", []),
        ("train {zero_stage} {output} {ds_config} {lr} {micro_batch_size}", CONSOLE, "{output}/x", []),
        ("", CONSOLE, None, ["the command is empty"]),
        ("train", None, None, ["a command needs step_times"]),
        ("train {zero_stag}", CONSOLE, None, ["unknown name {zero_stag}"]),
    ],
)
def test_mistakes_are_named(
    command: str, times: StepTimesSpec | None, checkpoint: str | None, messages: list[str]
) -> None:
    more = {"step_times": times, "checkpoint": checkpoint, "parameters": {"chunks": 2}}
    workload = WorkloadSpec().model_copy(update={"command": command, **more})
    mistakes = [message for _, message in command_mistakes(workload)]
    assert len(mistakes) == len(messages)
    assert all(words in message for words, message in zip(messages, mistakes, strict=True))


@pytest.mark.parametrize(
    ("document", "message"),
    [
        ({}, "got neither; name one of them"),
        ({"regex": "("}, "not a regular expression"),
    ],
)
def test_step_times_have_one_source_that_can_be_read(document: dict[str, str], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        StepTimesSpec.model_validate(document)
