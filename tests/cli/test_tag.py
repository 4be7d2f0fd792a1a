"""Names for runs: tags, `last~1`, and a baseline for each branch."""

from pathlib import Path

import pytest

from tests.analysis.synthetic import BASE_ID, HEAD_ID, trial, write_run
from zbench.analysis.sources import branch_baseline
from zbench.record.store import resolve_run

EVEN = [0.1, 0.101, 0.099, 0.1, 0.1005, 0.0995]


@pytest.fixture
def out(tmp_path: Path) -> Path:
    out = tmp_path / "results"
    for run_id in (BASE_ID, HEAD_ID):
        write_run(out / "example" / run_id, trial(EVEN))
    write_run(out / "other" / "20260105-000000-cccc", trial(EVEN))
    return out


def test_a_tag_names_a_run_everywhere(zbench, out):
    empty, named = zbench("tag"), zbench("tag", "last~2", "before")
    assert (empty.code, empty.out, named.code) == (0, "", 0)
    assert "no tags yet; `zbench tag last NAME` names the newest run" in empty.err
    assert resolve_run("before", out).name == BASE_ID
    code, text, _ = zbench("tag")
    assert (code, text) == (0, f"before  example/{BASE_ID}\n")
    assert "no tags" not in zbench("tag").err
    assert zbench("compare", "before", HEAD_ID)[0] == 0
    assert zbench("compare", "before", BASE_ID)[0] == 2, "one run under two names"
    assert zbench("tag", "last", "a/b")[0] == 2
    assert zbench("tag", "last")[0] == 2


def test_each_branch_has_its_baseline(zbench, out):
    assert zbench("compare", BASE_ID, "--save-baseline", "@feature/x")[0] == 0
    assert zbench("compare", "@feature/x", HEAD_ID)[0] == 0
    assert zbench("compare", "@main", HEAD_ID)[0] == 2
    assert branch_baseline("feature/x") != branch_baseline("feature-x")


def test_check_verifies_a_run_a_baseline_and_a_whole_directory(zbench, out):
    assert zbench("compare", BASE_ID, "--save-baseline", "main").code == 0
    assert zbench("check", BASE_ID).out == "2 files checked, none damaged\n"
    assert zbench("check", "main").out == "1 file checked, none damaged\n"
    assert len(zbench("check", out, "--json").document["files"]) == 7
    file = out / "example" / BASE_ID / "trials.jsonl"
    file.write_bytes(file.read_bytes().replace(b'"repeat":3', b'"repeat":4'))
    output = zbench("check", BASE_ID)
    assert output.code == 2
    assert "trials.jsonl:4: damaged line" in output.out
    assert output.out.endswith("2 files checked, 1 damaged\n")
    assert [row["problem"] is None for row in zbench("check", out, "--json").document["files"]].count(
        False
    ) == 1
    assert zbench("check", out / "example" / BASE_ID / "nothing").code == 2
