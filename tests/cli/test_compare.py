"""`zbench compare` through the command line: documents, files, exit codes, and every bad input."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from tests.analysis.synthetic import BASE_ID, HEAD_ID, record, saved, trial, write_run
from zbench.record import lines
from zbench.record.record import Timing

EVEN = [0.1, 0.101, 0.099, 0.1, 0.1005, 0.0995]


@pytest.fixture
def out(tmp_path: Path) -> Path:
    out = tmp_path / "results"
    write_run(out / "example" / BASE_ID, trial(EVEN))
    write_run(out / "example" / HEAD_ID, trial([1.3 * step for step in EVEN]))
    return out


def test_table_and_exit_code(zbench, out):
    code, text, _ = zbench("compare", BASE_ID, HEAD_ID)
    assert code == 1
    assert "regression" in text
    assert "+30.0 %" in text
    assert zbench("compare", BASE_ID, HEAD_ID, "--threshold", "step_time=50%")[0] == 0
    assert zbench("compare", BASE_ID, HEAD_ID, "--fail-on", "correctness")[0] == 0


def test_two_runs_without_a_yardstick_are_to_be_measured_paired(zbench, out):
    bare = [replace(one, heat=None) for one in trial([1.8 * step for step in EVEN])]
    write_run(out / "example" / "20250101-000000-aaaa", bare)
    code, text, _ = zbench("compare", BASE_ID, "20250101-000000-aaaa")
    assert (code, "inconclusive" in text, "regression" in text) == (3, True, False)
    assert "measure it paired: zbench compare BASE HEAD --paired" in text


def test_json_is_one_document(zbench, out):
    output = zbench("compare", BASE_ID, HEAD_ID, "--json")
    assert (output.document["exit_code"], output.err) == (1, "")
    document = zbench("compare", BASE_ID, "gone", "--json").document
    assert document["exit_code"] == 2
    assert "gone" in document["error"]["message"]


@pytest.mark.parametrize("name", ["markdown", "junit"])
def test_formats_go_to_stdout_and_all_of_them_to_files(zbench, out, name):
    code, text, _ = zbench("compare", BASE_ID, HEAD_ID, "--format", name, "--all-formats", out / "a")
    assert code == 1
    files = [path.read_text() for path in (out / "a").iterdir()]
    assert len(files) == 4
    assert text in files


def test_baselines_are_kept_and_found(zbench, out):
    code, text, stderr = zbench("compare", BASE_ID, "--save-baseline", "main")
    assert (code, text) == (0, "")
    assert "results/baselines/main.json" in stderr
    assert zbench("compare", "main", HEAD_ID)[0] == 1
    code, _, _ = zbench("compare", HEAD_ID, BASE_ID, "--save-baseline", "next")
    assert code == 0
    baseline = json.loads((out / "baselines" / "next.json").read_text())
    assert (baseline["fingerprint"], baseline["commit"], baseline["run_ids"]) == ("f00d", "c0ffee", [BASE_ID])


def test_unlike_machines_exit_5_or_are_marked(zbench, out):
    write_run(out / "example" / "20260103-000000-cccc", trial(EVEN), machine={"cpu": "Other CPU", "cores": 2})
    code, _, stderr = zbench("compare", BASE_ID, "last")
    assert code == 5
    assert "cpu: Example CPU, Other CPU" in stderr
    code, text, _ = zbench("compare", BASE_ID, "last", "--across")
    assert code == 3, "the yardstick cannot compare another CPU"
    assert "UNLIKE MACHINES" in text


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["{base}", "{head}", "--threshold", "step_time=3"], "write 3%"),
        (["{base}", "{head}", "--threshold", "stp_time=3%"], "did you mean 'step_time'"),
        (
            ["{base}", "{head}", "--format", "markdwon"],
            "'--format': 'markdwon' is not one of 'table', 'markdown'",
        ),
        (["{base}", "{head}", "--alpha", "0"], "--alpha: expected a probability"),
        (["{base}"], "expected BASE and HEAD"),
        (["{base}", "{base}"], "{base}"),
        (["{base}", "{head}", "--sweep", "x.yaml"], "needs --paired"),
        (["{base}", "--save-baseline", "../x"], "a baseline's name holds"),
        (["{out}/newer.json", "{head}"], "newer zbench"),
    ],
)
def test_bad_input_is_one_message_and_exit_2(refusal, out, arguments, says):
    (out / "empty").mkdir()
    (out / "newer.json").write_text('{"schema_version": 99}\n')
    places = {"base": BASE_ID, "head": HEAD_ID, "out": str(out)}
    message = refusal("compare", *(word.format(**places) for word in arguments))
    assert says.format(**places) in message
    assert message.count("\n") == 1


def test_a_file_of_impossible_figures_alone_holds_no_trials(refusal, out):
    absurd = replace(saved(record(0.1)), timing=Timing([0.1], -7.0, 1.0, 1.0))
    (out / "absurd.jsonl").write_bytes(lines.encode(absurd))
    skipped, message = refusal("compare", str(out / "absurd.jsonl"), HEAD_ID).splitlines()
    assert "no measurement gives" in skipped
    assert "absurd.jsonl holds no trials: expected at least one record" in message
