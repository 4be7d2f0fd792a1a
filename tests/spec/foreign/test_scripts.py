"""`--from` a Python file or a name of one: the form that names a model, or the skeleton of a command."""

from pathlib import Path
from typing import Any

import pytest

from zbench.errors import UsageError
from zbench.spec.foreign.scripts import form_of, from_script, is_script
from zbench.spec.starting import starting_sweep

NAME = "name the function or class that makes your model: --from"
MODULES = {
    "def helper(): ...\ndef make_model(): ...\nclass Net: ...": f"{NAME} m:make_model"
    " (it also has helper, Net)",
    "class Model: ...\ndef make(): ...": f"{NAME} m:make (it also has Model)",
    "class Net: ...": f"{NAME} m:Net",
    "class Net: ...\nclass Other: ...": f"{NAME} m:Net (it also has Other)",
    "def _model(): ...\ndef build(): ...": f"{NAME} m:build",
    "x = 1\ndef _model(): ...": "this module defines no function and no class; name the function that makes"
    " your model: --from m:NAME",
}


@pytest.mark.parametrize("source", MODULES)
def test_a_module_is_told_with_the_function_to_name(
    source: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "m.py").write_text(source)
    assert form_of(str(tmp_path / "m.py"), tmp_path / "elsewhere") == MODULES[source]
    assert form_of("m", tmp_path) == MODULES[source]
    assert form_of("m", tmp_path / "elsewhere") is None
    monkeypatch.chdir(tmp_path)
    assert form_of("m", tmp_path / "elsewhere") == MODULES[source]


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
        ("t.py", "if __name__ == '__main__':", True), ("t.py", "dist.init_process_group(x)", True),
        ("t.py", "deepspeed.initialize(x)", True), ("t.py", "Accelerator()", True),
        ("t.py", "trainer.train()", True), ("t.py", "def make_model(): ...", False),
        ("t.txt", "__main__", False), ("t.py", None, False),
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
        ("Trainer(model)\n", "", {"console": "transformers"}, ""),
        (OPTION.format("--lr") + OPTION.format("--bs"), "", REGEX, "--lr, --bs"),
        (OPTION.format("--lr") + OPTION.format("--deepspeed"), " --deepspeed {ds_config}",
         {"console": "deepspeed"}, "--lr, --deepspeed"),
        (OPTION.format("--deepspeed_config"), " --deepspeed_config {ds_config}", {"console": "deepspeed"},
         "--deepspeed_config"),
        (OPTION.format("--deepspeed-config"), " --deepspeed-config {ds_config}", {"console": "deepspeed"},
         "--deepspeed-config"),
        (OPTION.format("--deepspeed_stage"), "", {"console": "deepspeed"}, "--deepspeed_stage"),
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


def test_a_first_sweep_of_a_script_times_ten_steps(tmp_path: Path) -> None:
    (tmp_path / "t.py").write_text("import deepspeed\nif __name__ == '__main__': ...\n")
    document = starting_sweep(str(tmp_path / "t.py"), tmp_path).document
    assert document.keys() == {"name", "workload", "run", "axes"}
    assert document["run"] == {"warmup_steps": 2, "steps": 10, "repeats": 3, "world_size": "auto"}
    assert (document["name"], document["axes"]) == ("script", {})
