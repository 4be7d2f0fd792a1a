"""`--from` a Python file or a name of one: the form that names a model, or the skeleton of a command."""

from pathlib import Path
from typing import Any

import pytest

from zbench.errors import UsageError
from zbench.spec.foreign.scripts import form_of, from_script, is_script


def test_folders_and_dotted_names_are_told_by_their_form(tmp_path: Path) -> None:
    (tmp_path / "package").mkdir()
    folder = str(tmp_path / "package")
    assert form_of(folder, tmp_path) == (
        "this folder has no config.json of a model; name a file in it, or hf:FOLDER of a model"
    )
    (tmp_path / "package" / "config.json").touch()
    assert form_of(folder, tmp_path) == f"this is a folder of a model; write --from hf:{folder}"
    (tmp_path / "package" / "nets.py").touch()
    dotted = "write a colon before the last name: --from package.nets:make"
    assert form_of("package.nets.make", tmp_path) == dotted
    for unknown in ("package.absent.make", "package/nets", "2.package", "absent.py", "nets"):
        assert form_of(unknown, tmp_path) is None
    (tmp_path / "broken.py").write_text("x = 1\ndef (:\n")
    with pytest.raises(UsageError, match=r"broken\.py:2: not Python: .*; correct the syntax"):
        form_of("broken", tmp_path)


@pytest.mark.parametrize(
    ("name", "text", "trains"),
    [
        ("t.py", "if __name__ == '__main__':", True),
        ("t.py", "deepspeed.initialize(x)", True),
        ("t.py", "def make_model(): ...", False),
        ("t.txt", "__main__", False),
    ],
)  # fmt: skip
def test_a_script_is_known_by_what_it_starts(
    name: str, text: str | None, trains: bool, tmp_path: Path
) -> None:
    if text is not None:
        (tmp_path / name).write_text(text)
    assert is_script(tmp_path / name) is trains


REGEX = {"regex": r"step_seconds (?P<seconds>[0-9.]+)"}
OPTION = "p.add_argument({!r}, default=1)\n"
OWN_LINE = "have the script print `step_seconds SECONDS`"


@pytest.mark.parametrize(
    ("text", "config", "times", "options"),
    [
        ("print(1)\n", "", REGEX, ""),
        ("import deepspeed\n", "", {"console": "deepspeed"}, ""),
        (OPTION.format("--lr") + OPTION.format("--deepspeed"), " --deepspeed {ds_config}",
         {"console": "deepspeed"}, "--lr, --deepspeed"),
    ],
)  # fmt: skip
def test_a_script_becomes_a_command_with_what_it_takes(
    text: str, config: str, times: dict[str, Any], options: str, tmp_path: Path
) -> None:
    (tmp_path / "here").mkdir()
    script = tmp_path / "here" / "t.py"
    script.write_text(text)
    sweep = from_script(script, tmp_path)
    command = "torchrun --nproc-per-node {world_size} --master-port {port}"
    assert sweep.document == {
        "name": "script",
        "workload": {"command": f"{command} here/t.py{config}", "step_times": times},
        "run": {"world_size": "auto"},
        "axes": {"zero_stage": [1, 2, 3]} if config else {},
    }
    notes = " ".join(map(str, sweep.notes))
    assert (f"the script takes {options}; add those that vary" in notes) is bool(options)
    assert (OWN_LINE in notes) is (times == REGEX)
    assert "workload.checkpoint: name the weights" in notes
    elsewhere = from_script(script, tmp_path / "other").document["workload"]["command"]
    assert elsewhere == f"{command} {script}{config}"
