"""`zbench tune` and `zbench worker`: what people type, what they get, and every way to get it wrong."""

import json
from collections import Counter
from pathlib import Path
from types import SimpleNamespace

import pytest

from tests.cli.conftest import only_run
from zbench.errors import TrialsFailedError
from zbench.record.checking import checked
from zbench.record.store import find_runs, load_environment, load_records

SECRET = "hunter2"


@pytest.fixture
def space_file(tmp_path) -> Path:
    """Return a sweep of twelve points; `workload.options` says what workers do."""
    file = tmp_path / "space.yaml"
    file.write_text(
        "name: space\n"
        "workload: {model: 'fake_worker:model'}\n"
        "run: {world_size: 1, repeats: 2, timeout: 120s}\n"
        "axes: {zero_stage: [0, 1, 2], reduce_bucket_size: [10, 100, 1000, 10000]}\n"
    )
    return file


@pytest.mark.parametrize("axis", ["reduce_bucket_size", "sub_group_size", "engine.offload_ratio", "lr"])
def test_a_search_over_a_range_goes_on_from_a_sweep_at_the_default(zbench, space_file, axis) -> None:
    ranges = {"engine.offload_ratio": "low: 0.1, high: 0.9", "lr": "low: 1e-4, high: 1e-2, log: true"}
    limits = ranges.get(axis, "low: 1e3, high: 1e5, log: true")
    text = space_file.read_text().partition("axes:")[0]
    space_file.write_text(f"{text}axes: {{zero_stage: [1, 2], offload_optimizer: [cpu]}}\n")
    assert zbench("sweep", space_file).code == 0
    axes = f"zero_stage: [1, 2], offload_optimizer: [cpu], {axis}: {{{limits}}}"
    space_file.write_text(f"{text}axes: {{{axes}}}\n")
    output = zbench("tune", space_file, "--budget", "2trials")
    assert output.code == 0, output.err


def test_a_search_ends_with_a_best_that_was_measured_again(zbench, space_file) -> None:
    output = zbench("tune", space_file, "--budget", "4trials", "--objective", "minimize:median_step_s")
    assert output.code == 0, output.err
    assert "stopped: the budget of 4 trials is spent" in output.out
    assert Counter(record.repeat > 0 for record in load_records(only_run())) == {False: 4, True: 8}
    assert "method: tpe" in (only_run() / "spec.yaml").read_text()


def test_json_is_one_document_with_records_and_findings(zbench, space_file) -> None:
    document = zbench("tune", space_file, "--budget", "4trials", "--json", "-q").document
    run = only_run()
    assert (document["run_id"], document["exit_code"]) == (run.name, 0)
    assert document["recommended"] in {trial["trial_id"] for trial in document["trials"]}
    assert document["search"].items() <= json.loads((run / "search.json").read_text()).items()
    assert [file.problem for file in checked(run) if file.path.name == "search.json"] == [None]
    assert document["search"]["best"] in document["indistinguishable"]
    assert document["search"]["indistinguishable"] == document["indistinguishable"], "one rule for both"
    assert document["search"]["separated"] == (document["best"] is not None)


def test_a_search_resumes_to_the_same_end(zbench, space_file) -> None:
    output = zbench("sweep", space_file, "--set", "search.method=random", "--set", "search.trials=3")
    assert output.code == 0, output.err
    before = load_records(only_run())
    assert len([record for record in before if record.repeat == 0]) == 3
    assert (only_run() / "search.json").exists()
    assert zbench("tune", "--resume", "last").code == 0
    assert load_records(only_run()) == before


def test_the_memory_flag_is_a_constraint(zbench, space_file) -> None:
    output = zbench("tune", space_file, "--budget", "3trials", "--memory", "0.5Ki")
    assert output.code == 6
    assert "no best: no configuration is both correct and within the constraints" in output.out
    assert "has no best trial: none is correct" in zbench("show", "last", "--trial", "best").err
    assert "nearest zero_stage=" in output.out
    assert "peak_device_bytes <= 512 B (has 1000 B)" in output.out


@pytest.mark.parametrize(
    ("option", "code", "obstacle"), [("verdict: wrong", 4, "wrong"), ("do: crash", 6, "crashed")]
)
def test_where_nothing_is_right_the_nearest_miss_is_said(zbench, space_file, option, code, obstacle) -> None:
    flags = ("--budget", "3trials", "--set", f"workload.options={{{option}}}")
    document = zbench("tune", space_file, *flags, "--json").document
    assert (document["exit_code"], document["best"]) == (code, None)
    assert document["search"]["nearest_miss"]["obstacles"] == [obstacle]
    shown = zbench("tune", "--resume", "last").out
    assert "nearest " in shown
    assert obstacle in shown


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (("--budget", "0trials"), "a budget of nothing finds nothing"),
        (("--budget", "many"), "expected a budget such as 40trials"),
        (("--objective", "tokens_per_s"), "has no direction: expected maximize:tokens_per_s"),
        (("--objective", "maximize:tokens"), "unknown metric 'tokens' (did you mean 'tokens_per_s'?)"),
        (("--memory", "1"), "expected a size with its unit, such as 1Gi"),
        (("--method", "guess"), "error: --method guess: search.method: expected grid"),
        (("--set", "objective.subject_to={speed: '<= 3'}"), "unknown metric 'speed'"),
        (("--set", "verify.mode=off"), "a search needs verdicts"),
        (("--storage", f"postgresql://u:{SECRET}@127.0.0.1:1/db"), "cannot use storage postgresql://u:***@127.0.0.1:1/db"),
        (("--resume", "nothing"), "no run 'nothing'"),
    ],
)  # fmt: skip
def test_bad_input_is_refused_with_one_message_and_leaves_nothing(
    refusal, space_file, flags, message
) -> None:
    text = refusal("tune", space_file, *flags)
    assert message in text
    assert SECRET not in text
    assert find_runs(Path("results")) == []


def test_workers_share_a_study_and_its_creator_collects(zbench, space_file, tmp_path, monkeypatch):
    url = f"sqlite:///{tmp_path}/study.db"
    words = ("tune", space_file, "--method", "grid", "--storage", url, "--study", "s", "--budget")
    first = zbench(*words, "5trials")
    assert first.code == 0, first.err
    second = zbench("worker", "--storage", url, "--study", "s", "-o", "elsewhere", "--json")
    assert (second.document["exit_code"], second.document["study"]) == (0, "s")
    assert "the budget of 5 trials is spent; " in second.err
    assert f" of s in {find_runs(Path('elsewhere'))[0]}" in second.err
    (pulled,) = find_runs(Path("elsewhere"))
    assert {record.repeat for record in load_records(pulled)} == {0}, "it measures no finalist again"
    for failed, code, says in (
        (TrialsFailedError("its node is gone"), 6, "error: its node is gone\n"),
        (KeyboardInterrupt(), 130, "error: interrupted\n"),
    ):
        done = SimpleNamespace(failure=failed, path=Path(), records=[], outcome=None)
        monkeypatch.setattr("zbench.cli.worker.search", lambda *_, done=done: done)
        output = zbench("worker", "--storage", url, "--study", "s")
        assert (output.code, output.err) == (code, says)
    again = zbench(*words, "9trials")
    assert again.code == 0, again.err
    newest = find_runs(Path("results"))[-1]
    assert len([r for r in load_records(newest) if r.repeat == 0]) == 9, "those from before are collected"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("tune", "expected a sweep file"),
        ("worker", "expected --storage URL"),
        ("worker --storage sqlite:///x.db --study none", "sqlite:///x.db: there is no such file"),
    ],
)
def test_a_missing_file_or_study_is_one_line(refusal, words, message) -> None:
    text = refusal(*words.split())
    assert message in text
    assert SECRET not in text
    assert not Path("x.db").exists()


def test_no_file_of_a_run_holds_the_storages_password(zbench, space_file, tmp_path, monkeypatch) -> None:
    url = f"sqlite:///{tmp_path}/study.db?password={SECRET}"
    monkeypatch.setattr("sys.argv", ["zbench", "tune", str(space_file), "--storage", url])
    output = zbench("tune", space_file, "--budget", "1trials", "--storage", url)
    assert SECRET not in output.out + output.err
    run = only_run()
    assert load_environment(run)["invocation"]["command"][-1] == f"sqlite:///{tmp_path}/study.db"
    assert not any(SECRET.encode() in file.read_bytes() for file in run.rglob("*") if file.is_file())


def test_failing_points_of_a_search_leave_the_rest_unaffected(zbench, space_file) -> None:
    axes = "axes={offload_optimizer: [none, cpu], options.do: [describe, crash, allocate]}"
    output = zbench("tune", space_file, "--budget", "9trials", "--set", "search.patience=99", "--set", axes)
    assert output.code == 0, output.err
    outcomes: dict[str, set[str]] = {}
    for record in load_records(only_run()):
        outcomes.setdefault(record.axes["options.do"], set()).add(record.outcome)
    assert outcomes == {"describe": {"ok"}, "crash": {"crashed"}, "allocate": {"oom"}}
