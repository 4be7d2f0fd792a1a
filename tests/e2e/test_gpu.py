"""`python -m tools.gpu`: exit codes, what a second call runs again, and every part in its smallest form.

results/benchmarks/gpu.md promises all three.
"""

import sys
from pathlib import Path

import pytest
import torch

from tools.benchmarks.gpu import __main__ as program
from tools.benchmarks.gpu.outcome import PartOutcome, Place, page
from tools.benchmarks.gpu.parts import PARTS

SMALLEST = [
    pytest.param(
        part, id=part.name, marks=pytest.mark.check if part.name == "superoffload" else pytest.mark.soak
    )
    for part in PARTS
]


def call(monkeypatch: pytest.MonkeyPatch, *flags: str) -> int:
    monkeypatch.setattr(sys, "argv", ["gpu", *flags])
    return program.main()


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")
def test_without_a_device_one_line_gives_the_remedy(
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


def test_a_second_call_runs_only_parts_that_have_not_passed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    names = [part.name for part in PARTS[:3]]
    begun: list[str] = []
    answers = {names[0]: "passed", names[1]: "failed", names[2]: "passed"}

    def run_apart(part: program.Part, place: Place, seconds: float) -> PartOutcome:
        begun.append(part.name)
        outcome = PartOutcome(answers[part.name], "an outcome")  # type: ignore[arg-type]
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


def test_an_ended_part_is_missing_and_a_crashed_part_has_failed(tmp_path: Path) -> None:
    place = Place("cpu", True, tmp_path)
    late = program.run_apart(PARTS[0], place, 0.01)
    assert (late.status, late.says) == ("missing", "it was ended after 0 s: run it again")
    unknown = program.Part("no-such-part", "nothing", 60, PARTS[0].run)
    died = program.run_apart(unknown, place, 60)
    assert (died.status, died.says.startswith("it ended with 2")) == ("failed", True)
    assert PartOutcome.load(tmp_path / "no-such-part.json").says == died.says
