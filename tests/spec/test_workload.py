"""Templates of `workload.command`: which names they may use, and what becomes of them."""

from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from tests.making import make_trial
from zbench.spec.workload import (
    StepTimesSpec,
    WorkloadSpec,
    command_mistakes,
    names_of,
    rendered,
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


@pytest.mark.parametrize(
    ("value", "text"),
    [(None, ""), (True, "true"), (1.5, "1.5"), ("a b", "a b"), ([1, 2], "[1, 2]"), (Path("/x y"), "/x y")],
)
def test_a_value_is_written_as_a_command_takes_it(value: Any, text: str) -> None:
    assert rendered("--key={key}{{}}", {"key": value}) == f"--key={text}{{}}"


def test_a_value_stays_one_word() -> None:
    assert words("run 'a {x}' {x}", {"x": "b c"}) == ["run", "a b c", "b c"]


def test_names_of_a_template() -> None:
    assert names_of("{a} {b}{a} {{c}}") == {"a", "b"}
    with pytest.raises(ValueError, match="for braces that enclose no name"):
        names_of("{a")


@pytest.mark.parametrize(
    ("command", "times", "checkpoint", "messages"),
    [
        ("train {zero_stage} {output} {ds_config} {lr} {micro_batch_size}", CONSOLE, "{output}/x", []),
        ("", CONSOLE, None, ["the command is empty"]),
        ("train 'x", CONSOLE, None, ["quote it as for a shell"]),
        ("train", None, None, ["a command needs step_times"]),
        ("train {zero_stag}", CONSOLE, None, ["unknown name {zero_stag}"]),
        ("train {optimizer}", CONSOLE, "{nowhere}", ["unknown name {optimizer}", "unknown name {nowhere}"]),
        ("train", StepTimesSpec(jsonl="{a"), None, ["for braces that enclose no name"]),
    ],
)
def test_mistakes_are_named(
    command: str, times: StepTimesSpec | None, checkpoint: str | None, messages: list[str]
) -> None:
    mistakes = [message for _, message in command_mistakes(command, times, checkpoint)]
    assert len(mistakes) == len(messages)
    assert all(words in message for words, message in zip(messages, mistakes, strict=True))


@pytest.mark.parametrize(
    ("document", "message"),
    [
        ({}, "got neither; name one of them"),
        ({"jsonl": "a", "regex": "b"}, "got jsonl and regex; name one of them"),
        ({"regex": "("}, "not a regular expression"),
    ],
)
def test_step_times_have_one_source_that_can_be_read(document: dict[str, str], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        StepTimesSpec.model_validate(document)


def test_a_command_may_be_one_letter_and_not_empty() -> None:
    assert WorkloadSpec.model_validate({"command": "x"}).command == "x"
    with pytest.raises(ValidationError, match="command"):
        WorkloadSpec.model_validate({"command": ""})
