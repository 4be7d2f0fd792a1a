"""`make gpu`: every part is tried on the CPU in its smallest form, so that a first real run meets no slip."""

import json
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from ruamel.yaml import YAML

from tools.benchmarks.gpu import __main__ as program
from tools.benchmarks.gpu import ranks
from tools.benchmarks.gpu.outcome import Bar, PartOutcome, Place, folder_name, page, summary
from tools.benchmarks.gpu.parts import FOLDER, PARTS, ROOT, SWEEPS, VERIFIED, smallest_form
from tools.benchmarks.gpu.superoffload import batch_for
from zbench.spec.expand import expand
from zbench.spec.load import load_sweep

QUICK = ("superoffload",)
SMALLEST = [
    pytest.param(part, id=part.name, marks=[] if part.name in QUICK else [pytest.mark.soak]) for part in PARTS
]


def call(monkeypatch: pytest.MonkeyPatch, *flags: str) -> int:
    monkeypatch.setattr(sys, "argv", ["gpu", *flags])
    return program.main()


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")
def test_without_a_device_one_line_says_what_to_do(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert call(monkeypatch) == 2
    output = capsys.readouterr()
    assert output.out == ""
    (line,) = output.err.splitlines()
    assert "no CUDA device" in line
    assert "--device cpu --tiny" in line


@pytest.mark.parametrize("part", SMALLEST)
def test_a_part_in_its_smallest_form(part: program.Part, tmp_path: Path) -> None:
    outcome = part.run(Place("cpu", True, tmp_path))
    assert outcome.status == "passed", outcome
    outcome.save(tmp_path / "saved.json")
    assert page("cpu", {part.name: outcome}) == page(
        "cpu", {part.name: PartOutcome.load(tmp_path / "saved.json")}
    )


def test_a_run_goes_on_where_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The first part passes and is not run again; the second failed, and is."""
    names = [part.name for part in PARTS[:3]]
    begun: list[str] = []
    answers = {names[0]: "passed", names[1]: "failed", names[2]: "passed"}

    def run_apart(part: program.Part, place: Place, seconds: float) -> PartOutcome:
        begun.append(part.name)
        outcome = PartOutcome(answers[part.name], "so it was")  # type: ignore[arg-type]
        outcome.save(place.out / f"{part.name}.json")
        return outcome

    monkeypatch.setattr(program, "run_apart", run_apart)
    flags = ["--device", "cpu", "--tiny", "--out", str(tmp_path), "--only", *names]
    assert call(monkeypatch, *flags) == 1
    assert begun == names
    assert "2 passed, 1 failed, 0 missing" in capsys.readouterr().out
    answers[names[1]] = "passed"
    begun.clear()
    assert call(monkeypatch, *flags) == 0
    assert begun == [names[1]]
    assert "3 passed, 0 failed, 0 missing" in capsys.readouterr().out
    assert "nothing here is a figure of a device" in (tmp_path / "README.md").read_text()


def test_no_part_begins_after_the_time_is_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    flags = ["--device", "cpu", "--tiny", "--out", str(tmp_path), "--only", "adam", "--minutes", "0"]
    assert call(monkeypatch, *flags) == 1
    assert "run it again" in capsys.readouterr().out


def test_a_part_that_dies_or_hangs_is_a_failure_of_its_own(tmp_path: Path) -> None:
    place = Place("cpu", True, tmp_path)
    late = program.run_apart(PARTS[0], place, 0.01)
    assert (late.status, late.says) == ("missing", "it was ended after 0 s: run it again")
    nobody = program.Part("no-such-part", "nothing", 60, PARTS[0].run)
    died = program.run_apart(nobody, place, 60)
    assert (died.status, died.says.startswith("it ended with 2")) == ("failed", True)
    assert PartOutcome.load(tmp_path / "no-such-part.json").says == died.says


def test_a_lock_of_a_compiler_that_was_ended_is_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """DeepSpeed compiles its CPU optimizer when it is first used; torch would wait for this lock for ever."""
    lock = tmp_path / "extensions" / "cpu_adam" / "lock"
    lock.parent.mkdir(parents=True)
    lock.touch()
    monkeypatch.setattr(program, "_EXTENSIONS", tmp_path / "extensions")
    program._run_all([], Place("cpu", True, tmp_path), 1.0, 0.0)
    assert not lock.exists()


def test_the_page_says_which_bars_are_missed() -> None:
    outcome = PartOutcome(
        "passed", "done", [["a"], ["1"]], (Bar("exposed", 0.2, 0.15), Bar("rate", 0.95, 0.9, most=False))
    )
    text = page("NVIDIA H100 80GB", {"part": outcome})
    assert "| part | exposed | 0.200 | at most 0.15 | **no** |" in text
    assert "| part | rate | 0.950 | at least 0.90 | yes |" in text
    assert "1 of 2 bars missed" in summary({"part": outcome})
    assert folder_name("NVIDIA H100 80GB") == "nvidia-h100-80gb"


def test_the_decoders_configurations_exist_and_deepspeeds_differ_in_the_engine_alone() -> None:
    sweep = expand(load_sweep(FOLDER / "decoder.yaml"))
    assert not sweep.invalid
    assert len(sweep.trials) >= 13
    assert {trial.verify.mode for trial in sweep.trials} == {"off"}, "a whole reference takes minutes"
    assert all(row in [trial.axes for trial in sweep.trials] for row in VERIFIED)
    assert {trial.run.world_size for trial in sweep.trials} == {1}, "ranks that share a card measure nothing"
    ours, theirs = (
        YAML(typ="safe").load(FOLDER / f"{name}.yaml") for name in ("decoder", "decoder-deepspeed")
    )
    rows = theirs.pop("include")
    assert {row.pop("engine") for row in rows} == {"deepspeed"}
    assert all(row in ours["include"] for row in rows)
    assert {**theirs, "name": "decoder", "include": ours["include"]} == ours


@pytest.mark.parametrize("name", SWEEPS)
def test_a_sweep_in_its_smallest_form_is_one_configuration(name: str) -> None:
    file = ROOT / "sweeps" / f"{name}.yaml"
    expansion = expand(load_sweep(file, smallest_form(file)))
    assert [trial.axes for trial in expansion.trials] == [expand(load_sweep(file)).trials[-1].axes]


@pytest.mark.parametrize("world", ranks.WORLDS)
def test_the_configurations_of_several_ranks_exist_with_both_reductions_on_a_card(world: int) -> None:
    rows = ranks.configurations("cuda")
    sets = ["run.device=cuda", f"run.world_size={world}", f"include={json.dumps(rows)}"]
    expansion = expand(load_sweep(ranks.FILE, sets))
    assert not expansion.invalid
    assert len(expansion.trials) == len(rows) == 2 * len(ranks.configurations("cpu"))
    assert {trial.engine.zero_stage for trial in expansion.trials} == {0, 1, 2, 3}


def test_what_ranks_heard_decides_whether_a_case_ended_as_it_should() -> None:
    named = f"RanksDisagreeError: rank 1 has stopped: {ranks.CAUSE}"
    assert ranks.Trouble(2, "raises", (named, ranks.CAUSE), (1.0, 0.0)).is_good
    assert not ranks.Trouble(2, "raises", ("no answer", ranks.CAUSE), (1.0, 0.0)).is_good
    uncaused = "RanksDisagreeError: rank 1 has stopped"
    assert not ranks.Trouble(2, "raises", (uncaused, ranks.CAUSE), (1.0, 0.0)).is_good
    assert not ranks.Trouble(2, "raises", (named, ranks.CAUSE), (10.1, 0.0)).is_good
    assert not ranks.Trouble(2, "differs", (named, "weights 1"), (1.0, 1.0)).is_good
    assert ranks.Trouble(2, "stopped", ("weights 1", "weights 1"), (13.0, 13.0)).is_good
    assert not ranks.Trouble(2, "stopped", ("weights 1", "weights 2"), (13.0, 13.0)).is_good


@pytest.mark.parametrize("case", ["raises", "differs"])
def test_ranks_in_trouble_hear_of_it(case: str) -> None:
    trouble = ranks.have(2, case, "cpu")
    assert replace(trouble, seconds=(0.0, 0.0)).is_good, trouble  # how soon is for a quiet machine to say


def test_all_parts_fit_in_the_time_of_two_calls() -> None:
    assert sum(part.seconds for part in PARTS) <= 2 * 60 * program.MINUTES


def test_the_update_fits_twice_under_the_backward_of_the_chosen_batch() -> None:
    batches = {(0.028, 0.103): 59, (0.2, 0.1): 8, (1.0, 0.1): 8, (0.001, 0.1): 96}
    assert {seconds: batch_for(8, *seconds) for seconds in batches} == batches
