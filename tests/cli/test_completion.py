"""The shell completes commands, runs, tags and trials."""

from pathlib import Path

import pytest

from tests.analysis.synthetic import BASE_ID, HEAD_ID, record, saved, trial, write_run
from tests.cli.conftest import run
from zbench.record.tags import save_tag

IDS = [saved(record(axes={"zero_stage": stage})).trial_id for stage in (3, 1, 2)]


@pytest.fixture
def results(tmp_path: Path) -> Path:
    for name, stages in ((BASE_ID, (2, 3)), (HEAD_ID, (1, 2))):
        records = [record for stage in stages for record in trial([0.1], axes={"zero_stage": stage})]
        write_run(tmp_path / "results" / "example" / name, records)
    save_tag(tmp_path / "results", "before", f"example/{BASE_ID}")
    return tmp_path


@pytest.mark.parametrize(
    ("words", "offers"),
    [
        ("zbench sho", ["show"]),
        ("zbench show ", ["last", "before", "example", HEAD_ID, BASE_ID]),
        ("zbench show last --trial ", ["best", *IDS[1:]]),
        (f"zbench export {BASE_ID} --trial {IDS[0][:5]}", IDS[:1]),
        ("zbench show last --output-dir elsewhere --trial ", []),
    ],
)
def test_runs_and_trials_are_completed(
    results: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    words: str,
    offers: list[str],
) -> None:
    """bash calls the command with these variables, and offers the words of its answer."""
    monkeypatch.chdir(results)
    monkeypatch.setenv("_ZBENCH_COMPLETE", "complete_bash")
    monkeypatch.setenv("COMP_WORDS", words)
    monkeypatch.setenv("COMP_CWORD", str(len(words.split(" ")) - 1))
    assert run(capsys).out.split() == offers
