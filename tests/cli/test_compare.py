"""`zbench compare` through the command line: documents, files, exit codes, and every bad input."""

import json
from pathlib import Path

import pytest
from analysis.synthetic import BASE_ID, HEAD_ID, record, trial, write_run

from tests.cli.calling import run
from zbench.spec.engine import EngineSpec
from zbench.spec.run import RunSpec
from zbench.spec.trial import TrialSpec
from zbench.spec.workload import WorkloadSpec

QUIET = ("--run-noise", "1%")
EVEN = [0.1, 0.101, 0.099, 0.1, 0.1005, 0.0995]


@pytest.fixture
def out(tmp_path: Path) -> Path:
    write_run(tmp_path / "example" / BASE_ID, trial(EVEN))
    write_run(tmp_path / "example" / HEAD_ID, trial([1.3 * step for step in EVEN]))
    return tmp_path


def test_table_and_exit_code(capsys: pytest.CaptureFixture[str], out: Path) -> None:
    code, text, _ = run(capsys, "compare", BASE_ID, HEAD_ID, "-o", out, *QUIET)
    assert code == 1
    assert "regression" in text
    assert "+30.0 %" in text
    assert run(capsys, "compare", BASE_ID, HEAD_ID, "-o", out, "--threshold", "step_time=50%", *QUIET)[0] == 0
    assert run(capsys, "compare", BASE_ID, HEAD_ID, "-o", out, "--fail-on", "correctness")[0] == 0


def test_two_runs_alone_cannot_show_the_noise_between_runs(
    capsys: pytest.CaptureFixture[str], out: Path
) -> None:
    code, text, _ = run(capsys, "compare", BASE_ID, HEAD_ID, "-o", out)
    assert code == 3
    assert "suspected" in text
    assert "two runs cannot show the noise between runs" in text
    for i in range(10):
        write_run(
            out / "example" / f"2025010{i}-000000-aaaa",
            trial([step * (1 + 0.002 * (i % 3)) for step in EVEN]),
        )
    code, text, _ = run(capsys, "compare", BASE_ID, HEAD_ID, "-o", out)
    assert (code, "regression" in text) == (1, True)


def test_a_run_against_itself_or_against_nothing_is_a_mistake(
    capsys: pytest.CaptureFixture[str], out: Path
) -> None:
    assert run(capsys, "compare", BASE_ID, BASE_ID, "-o", out)[0] == 2
    assert run(capsys, "compare", "nope", "nope2", "-o", out)[0] == 2


def test_json_is_one_document(capsys: pytest.CaptureFixture[str], out: Path) -> None:
    code, text, errors = run(capsys, "compare", BASE_ID, HEAD_ID, "-o", out, "--json", *QUIET)
    document = json.loads(text)
    assert document["exit_code"] == code == 1
    assert not errors
    code, text, _ = run(capsys, "compare", BASE_ID, "gone", "-o", out, "--json")
    document = json.loads(text)
    assert document["exit_code"] == code == 2
    assert "gone" in document["error"]["message"]


@pytest.mark.parametrize("name", ["markdown", "json", "csv", "junit", "bmf"])
def test_formats_go_to_stdout_or_a_file(capsys: pytest.CaptureFixture[str], out: Path, name: str) -> None:
    code, text, _ = run(capsys, "compare", BASE_ID, HEAD_ID, *QUIET, "-o", out, "--format", name)
    path = out / "new" / "file"
    assert (
        code
        == run(capsys, "compare", BASE_ID, HEAD_ID, *QUIET, "-o", out, "--format", name, "--to", path)[0]
        == 1
    )
    assert path.read_text() == text


def test_gha_writes_two_files_and_all_formats_every_one(
    capsys: pytest.CaptureFixture[str], out: Path
) -> None:
    _, text, _ = run(
        capsys,
        "compare",
        BASE_ID,
        HEAD_ID,
        "-o",
        out,
        "--format",
        "gha",
        "--to",
        out / "a",
        "--all-formats",
        out / "b",
    )
    assert [Path(line).name for line in text.split()] == ["smaller-is-better.json", "bigger-is-better.json"]
    assert all(Path(line).is_file() for line in text.split())
    assert len(list((out / "b").iterdir())) == 7


def test_baselines_are_kept_and_found(capsys: pytest.CaptureFixture[str], out: Path) -> None:
    code, text, said = run(capsys, "compare", BASE_ID, "--save-baseline", "main", "-o", out)
    assert (code, text) == (0, "")
    assert str(out / "baselines" / "main.json") in said
    assert run(capsys, "compare", "main", HEAD_ID, "-o", out, *QUIET)[0] == 1
    code, _, _ = run(capsys, "compare", HEAD_ID, BASE_ID, "--save-baseline", "next", "-o", out, *QUIET)
    assert code == 0
    kept = json.loads((out / "baselines" / "next.json").read_text())
    assert (kept["fingerprint"], kept["commit"], kept["run_ids"]) == ("f00d", "c0ffee", [BASE_ID])


def test_a_wrong_head_exits_4(capsys: pytest.CaptureFixture[str], out: Path) -> None:
    write_run(out / "example" / "20260103-000000-cccc", trial([0.5 * step for step in EVEN], verdict="wrong"))
    assert run(capsys, "compare", BASE_ID, "last", "-o", out)[0] == 4


def test_unlike_machines_exit_5_or_are_marked(capsys: pytest.CaptureFixture[str], out: Path) -> None:
    write_run(out / "example" / "20260103-000000-cccc", trial(EVEN), machine={"cpu": "Other CPU", "cores": 2})
    code, _, said = run(capsys, "compare", BASE_ID, "last", "-o", out)
    assert code == 5
    assert "cpu: Example CPU, Other CPU" in said
    code, text, _ = run(capsys, "compare", BASE_ID, "last", "-o", out, "--across", *QUIET)
    assert code == 0
    assert "UNLIKE MACHINES" in text


def test_a_torn_file_is_compared_with_a_warning(capsys: pytest.CaptureFixture[str], out: Path) -> None:
    path = out / "example" / HEAD_ID / "trials.jsonl"
    path.write_bytes(path.read_bytes()[:-40])
    code, _, said = run(capsys, "compare", BASE_ID, HEAD_ID, "-o", out, *QUIET)
    assert code == 1
    assert "ends in the middle of a record" in said


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["{base}", "{head}", "--threshold", "step_time=3"], "write 3%"),
        (["{base}", "{head}", "--threshold", "stp_time=3%"], "did you mean 'step_time'"),
        (["{base}", "{head}", "--format", "markdwon"], "is not one of 'table', 'markdown'"),
        (["{base}", "{head}", "--fail-on", "everything"], "unknown 'everything'"),
        (["{base}", "{head}", "--alpha", "0"], "--alpha: expected a probability"),
        (["{base}", "{head}", "--run-noise", "1"], "such as 3%"),
        (["{base}"], "expected BASE and HEAD"),
        (["{base}", "{head}", "--sweep", "x.yaml"], "belongs to a paired measurement"),
        (["{base}", "{head}", "--set", "run.steps=2"], "belongs to a paired measurement"),
        (["{base}", "--save-baseline", "../x"], "a baseline's name holds"),
        (["{out}/empty", "{head}"], "holds no run"),
        (["{out}/absurd.jsonl", "{head}"], "no measurement gives"),
        (["{out}/newer.jsonl", "{head}"], "newer zbench"),
    ],
)
def test_bad_input_is_one_message_and_exit_2(
    capsys: pytest.CaptureFixture[str], out: Path, arguments: list[str], says: str
) -> None:
    (out / "empty").mkdir()
    (out / "newer.jsonl").write_text('{"schema_version": 99}\n')
    line = json.dumps(record(0.1).to_json()).replace('"median_step_s": 0.1', '"median_step_s": -7')
    (out / "absurd.jsonl").write_text(line + "\n")
    places = {"base": BASE_ID, "head": HEAD_ID, "out": str(out)}
    code, text, said = run(capsys, "compare", *(word.format(**places) for word in arguments), "-o", out)
    assert (code, text) == (2, "")
    assert says in said
    assert said.count("\n") == 1
    assert "Traceback" not in said


def test_a_thousand_trials_of_full_size(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    spec = TrialSpec(workload=WorkloadSpec(), run=RunSpec(), engine=EngineSpec())
    records = [
        item
        for i in range(1000)
        for item in trial(EVEN[:3], axes={"reduce_bucket_size": i}, config=spec.config())
    ]
    for run_id in (BASE_ID, HEAD_ID):
        write_run(tmp_path / "example" / run_id, records)
    code, text, _ = run(
        capsys, "compare", BASE_ID, HEAD_ID, "-o", tmp_path, *QUIET, "--fail-on", "regression"
    )
    assert code == 0
    assert "1000 configurations" in text
