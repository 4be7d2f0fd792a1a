import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from zbench.spec.load import load_sweep
from zbench.spec.sweep import SweepSpec

Refusal = Callable[..., str]


@pytest.mark.parametrize(
    ("held", "complaint"),
    [
        (0, "a.txt is empty; name a text of at least 9 bytes"),
        (8, "a.txt holds 8 bytes, but one sequence needs 9 (sequence_length + 1);"
            " name a longer text or lower workload.sequence_length"),
    ],
)  # fmt: skip
def test_a_text_shorter_than_a_sequence_and_its_last_target(
    held: int, complaint: str, refusal: Refusal, tmp_path: Path
) -> None:
    (tmp_path / "a.txt").write_bytes(b"x" * held)
    text = "workload:\n  sequence_length: 8\n  data: {text: a.txt}\n"
    assert refusal(text) == f"sweep.yaml:3: workload.data.text: {complaint}"
    (tmp_path / "a.txt").write_bytes(b"x" * 9)
    assert load_sweep(tmp_path / "sweep.yaml", (), {}).workload.data.text == "a.txt"


def test_every_text_is_long_enough_for_every_length(refusal: Refusal, tmp_path: Path) -> None:
    (tmp_path / "long.txt").write_bytes(b"x" * 100)
    (tmp_path / "short.txt").write_bytes(b"x" * 10)
    axes = "axes:\n  sequence_length: [4, 32]\n  data.text: [long.txt, short.txt]\n"
    assert refusal(axes).startswith(
        "sweep.yaml:3: axes.data.text: short.txt holds 10 bytes, but one sequence needs 33"
    )
    allowed = axes + "exclude:\n  - {data.text: short.txt, sequence_length: 32}\n"
    (tmp_path / "ok.yaml").write_text(allowed)
    load_sweep(tmp_path / "ok.yaml", (), {})


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("workload: {preset: nanno}", "preset: unknown preset 'nanno' (did you mean 'nano'?)"),
        ("workload: {options: {widht: 3}}", "options: widht: unknown key (did you mean 'width'?)"),
        ("workload: {options: {width: 65, heads: 2}}", "options: gpt: width must be a multiple of heads"),
        ("workload: {model: 'a b:c'}", "model: expected module:callable, such as models:build, got 'a b:c'"),
        ("workload: {loss: 'models:loss'}", "loss: loss is for a model of your own"),
        ("workload: {data: {text: no.txt}}", "data.text: no such file: no.txt; the path is relative to the"),
    ],
)
def test_inputs_are_checked_without_torch(text: str, message: str, refusal: Refusal) -> None:
    section = text.partition(":")[0]
    assert refusal(text).startswith(f"sweep.yaml:1: {section}.{message}")


COMMAND = """
workload:
  command: python train.py {used}
  step_times: {{console: deepspeed}}
axes:
  lr: [0.1, 0.2]
"""


def test_an_axis_that_the_command_ignores_is_refused(refusal: Refusal) -> None:
    assert refusal(COMMAND.format(used="{lr}") + "  zero_stage: [0, 1]\n") == (
        "sweep.yaml:7: axes.zero_stage: the command does not use {zero_stage}, so this axis changes nothing;"
        " add it to the command"
    )


@pytest.mark.parametrize(
    ("declared", "axis", "message"),
    [
        ("{lr: 1}", "", "{lr} is a key of zbench; set that key, or choose another name"),
        ("{bucket-mb: 1}", "", "expected a name of letters, digits and _, got 'bucket-mb'; rename it"),
        ("{mb: null}", "", "workload.parameters.mb: expected true or false or a whole number or"),
        ("{unused: 1}", "", "workload.parameters.unused: the command does not use {unused}"),
        ("{mb: 1}", "mb: [25, [2]]", "axes.mb[1]: expected true or false or a whole number or"),
        ("{mb: 1}", "mib: [1, 25]", "axes.mib: unknown key 'mib' (did you mean 'mb'?)"),
        ("{}", "mb: [1, 25]", "declare a flag of the script as workload.parameters: {mb: VALUE}"),
        ("{}", "parameters.mb: [1]", "mb is not declared; give its base value as workload.parameters"),
        ("{mb: 1}", "mb: [1]\n  parameters: [{mb: 2}]", "axes.mb sets mb, too; leave it out of one"),
    ],
)
def test_mistakes_about_flags_of_a_script(declared: str, axis: str, message: str, refusal: Refusal) -> None:
    written = "{lr} {mb}" if "mb: 1}" in declared else "{lr}"
    text = COMMAND.format(used=written).replace("axes:", f"  parameters: {declared}\naxes:")
    assert message in refusal(f"{text}  {axis}\n")


@pytest.mark.parametrize("used", ["{lr}", "{ds_config}"])
def test_a_command_gets_batch_interpreter_and_files_unasked(
    used: str, loaded: Callable[..., SweepSpec]
) -> None:
    text = COMMAND.format(used=used) + f"  micro_batch_size: [1, 2]\n  engine_python: [{sys.executable}]\n"
    assert list(loaded(text).axes) == ["lr", "micro_batch_size", "engine_python"]


def test_what_a_command_does_not_read_is_refused(refusal: Refusal) -> None:
    message = refusal(COMMAND.format(used="{lr}").replace("axes:", "  model: mlp\naxes:"))
    assert message == (
        "sweep.yaml:5: workload.model: a command brings its own model and data; leave model out"
    )
