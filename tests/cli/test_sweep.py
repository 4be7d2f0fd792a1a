"""`zbench sweep`: results on stdout, the rest on stderr, the documented exit codes, resume."""

import json
import re
import subprocess
from collections import Counter
from copy import deepcopy
from pathlib import Path
from types import SimpleNamespace

import pytest

from tests.cli.conftest import only_run
from zbench.cli import conclusion
from zbench.launch import sweep as sweeps
from zbench.record.documents import sealed
from zbench.record.store import find_runs, load_environment, load_records


def options(**keys) -> tuple[str, str]:
    return "--set", f"workload.options={json.dumps(keys)}"


def test_sweep_prints_one_row_a_configuration_and_the_best(zbench, sweep_file):
    output = zbench("sweep", sweep_file)
    assert output.code == 0
    rows = [line.split() for line in output.out.splitlines()]
    assert rows[0][:3] == ["trial", "zero_stage", "outcome"]
    assert sum("identical" in row for row in rows[1:3]) == 2
    assert output.out.count("(of the 2 that may be the best, the fastest repeat by repeat)") == 1
    assert "[4/4]" in output.err
    assert "results in" in output.err
    assert output.err.splitlines()[-1] == f"  zbench export {only_run()} --trial best", "what comes next"


def test_json_is_one_document_with_every_record(zbench, sweep_file):
    output = zbench("sweep", sweep_file, "--json", "-q")
    document = output.document
    run = only_run()
    assert (document["run_dir"], document["run_id"]) == (str(run), run.name)
    assert len(document["trials"]) == 4
    assert document["recommended"] in {record["trial_id"] for record in document["trials"]}
    assert (document["exit_code"], output.err, "error" in document) == (0, "", False)


@pytest.mark.parametrize(
    ("keys", "code", "word"),
    [({"verdict": "wrong"}, 4, "wrong"), ({"do": "allocate"}, 6, "oom")],
)
def test_exit_code_says_what_became_of_the_trials(zbench, sweep_file, keys, code, word):
    output = zbench("sweep", sweep_file, *options(**keys))
    assert output.code == code
    assert word in output.out
    document = zbench("show", "--json").document
    assert (document["run_exit_code"], document["recommended"]) == (code, None)


@pytest.mark.parametrize(
    ("keys", "says"),
    [
        ({"verdict": "wrong"}, " is wrong and is never recommended; choose another"),
        ({}, None),
    ],
)
def test_an_export_of_a_faulty_configuration_names_the_fault(zbench, sweep_file, keys, says):
    zbench("sweep", sweep_file, *options(**keys))
    trial_id = load_records(only_run())[0].trial_id
    output = zbench("export", "last", "--trial", trial_id)
    assert (output.code, "zero_optimization" in output.out) == (0, True)
    assert (f"warning: trial {trial_id}" in output.err) == (says is not None)
    assert (says or "") in output.err


def test_flags_are_settings(zbench, sweep_file):
    zbench("sweep", sweep_file, "--repeats", "1", "--seed", "7", "--timeout", "9s", "--set", "steps=3")
    assert "min_gain: 0.01" in (only_run() / "spec.yaml").read_text()
    records = load_records(only_run())
    assert records[0].config["run"].items() >= {"seed": 7, "timeout": 9.0, "steps": 3}.items()
    assert len(records) == 2


def test_output_directory_by_flag_or_variable(zbench, sweep_file, monkeypatch, tmp_path):
    monkeypatch.setenv("ZBENCH_OUTPUT_DIR", str(tmp_path / "by-variable"))
    zbench("sweep", sweep_file, "--repeats", "1")
    zbench("sweep", sweep_file, "--repeats", "1", "-o", "by-flag")
    assert len(find_runs(tmp_path / "by-variable")) == len(find_runs(tmp_path / "by-flag")) == 1


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (("--set", "zero_stag=1"), "zero_stag"),
        (("--set", "world_size=100000"), "world_size"),
        (("--timeout", "soon"), "error: --timeout soon: run.timeout: expected a time"),
        (("-o", "sweep.yaml/results"), "cannot write results under"),
        (("--resume", "nothing"), "no run 'nothing'"),
        (("--max-time", "soon"), "--max-time"),
        (("--max-time", "2h", "--set", "search.method=random"), "search.budget"),
    ],
)
def test_bad_input_is_one_message_and_leaves_nothing(refusal, sweep_file, change, words):
    before = sorted(Path().rglob("*"))
    assert words in refusal("sweep", sweep_file, *change)
    assert sorted(Path().rglob("*")) == before


def test_resume_after_the_file_changed_is_refused_with_the_key(zbench, refusal, sweep_file):
    zbench("sweep", sweep_file, "--set", "steps=5")
    assert zbench("sweep", "--resume", "last").code == 0, "with the settings of its first start"
    assert "run.steps was 5, is 4" in refusal("sweep", "--resume", "last", "--set", "steps=4")
    sweep_file.write_text(sweep_file.read_text().replace("[0, 1]", "[0, 2]"))
    message = refusal("sweep", sweep_file, "--resume", "last")
    assert "has changed" in message
    assert "axes.zero_stage was [0, 1], is [0, 2]" in message
    message = refusal("sweep", "quickstart", "--resume", "last")
    assert f"was started from {sweep_file}, not from " in message
    assert "leave the file out to continue that run" in message


def test_secrets_are_nowhere_in_a_run_which_goes_on_with_its_sweep_file(zbench, refusal, sweep_file):
    secret = "aB3dE5gH7jK9"
    model = "{model: 'fake_worker:model', options: {api_key: %s, do: describe}}"
    text = sweep_file.read_text().replace("{model: 'fake_worker:model'}", model)
    sweep_file.write_text(text % secret)
    first = zbench("sweep", sweep_file, "--json")
    assert first.code == 0
    more = zbench("sweep", "--resume", "last", "--repeats", "3", "--json")
    ids = [[trial["trial_id"] for trial in output.document["trials"]] for output in (first, more)]
    assert sorted(ids[1]) == sorted(ids[0] + list(set(ids[0])))
    shown = zbench("show", "last", "--json").out
    files = [file.read_text() for file in only_run().rglob("*") if file.is_file()]
    assert any("'api_key': '***'" in text for text in files), "in a log"
    assert not any(secret in text for text in [*files, first.out, more.out, shown])
    sweep_file.unlink()
    assert "its record masks its secrets, and no sweep file" in refusal("sweep", "--resume", "last")


@pytest.mark.parametrize("action", ["describe", "tell_secret"])
@pytest.mark.parametrize("command", [("sweep",), ("tune", "--budget", "2trials"), ("run",)])
def test_a_secret_without_its_name_is_in_no_file_and_no_stream(zbench, sweep_file, command, action):
    secret = "aB3dE5gH7jK9"
    options = f"{{model: 'fake_worker:model', options: {{api_key: {secret}, do: {action}}}}}"
    sweep_file.write_text(sweep_file.read_text().replace("{model: 'fake_worker:model'}", options))
    outputs = [
        zbench(command[0], sweep_file, *command[1:]),
        zbench("show", "last"),
        zbench("plan", sweep_file),
    ]
    outputs.append(zbench("plan", sweep_file, "--set", f"workload.options.api_key=[{secret}"))
    texts = [text for output in outputs for text in (output.out, output.err)]
    texts += [file.read_text() for file in Path("results").rglob("*") if file.is_file()]
    assert any("'api_key': '***'" in text or "store with ***" in text for text in texts)
    assert not any(secret in text for text in texts)


@pytest.mark.parametrize("how", ["removed", "older copy", "renamed"])
@pytest.mark.parametrize("moment", ["rank_run", "print_results"])
@pytest.mark.parametrize("command", [("sweep",), ("tune", "--budget", "2trials")])
def test_records_that_are_removed_at_the_very_end_are_noticed(
    zbench, refusal, sweep_file, monkeypatch, how, moment, command
):
    """Another process acts while the results are ranked, or while they are printed."""
    before = getattr(conclusion, moment)

    def remove(*arguments, **more):
        file = only_run() / "trials.jsonl"
        if how == "removed":
            file.unlink()
        elif how == "older copy":
            file.write_bytes(file.read_bytes().splitlines(keepends=True)[0])
        else:
            file.parent.rename(file.parent.with_name("moved"))
        return before(*arguments, **more)

    monkeypatch.setattr(conclusion, moment, remove)
    output = zbench(command[0], sweep_file, *command[1:])
    assert output.code == 2
    assert "was removed or changed by another process" in output.err
    assert moment == "print_results" or not output.out


def test_resume_of_what_was_measured_elsewhere_is_refused(zbench, refusal, sweep_file):
    zbench("sweep", sweep_file, "--repeats", "1")
    run = only_run()
    before = (run / "trials.jsonl").read_bytes()
    recorded = load_environment(run)
    for section, key, value in (("machine", "cores", 4096), ("software", "torch", "1.0")):
        document = deepcopy(recorded)
        document[section][key] = value
        (run / "environment.json").write_bytes(sealed(document))
        message = refusal("sweep", "--resume", "last", "--repeats", "3")
        assert f"{section}: {key} was {value}, is " in message
        assert "start a new run without --resume" in message
        assert (run / "trials.jsonl").read_bytes() == before


def test_resume_at_another_commit_says_so(zbench, sweep_file):
    git = ["git", "-c", "user.name=tester", "-c", "user.email=tester@localhost"]
    subprocess.run([*git, "init", "-q"], check=True)
    commits, warnings = [], []
    for arguments in ([sweep_file], ["--resume", "last"]):
        subprocess.run([*git, "commit", "-q", "--allow-empty", "-m", "a commit"], check=True)
        commits.append(subprocess.check_output([*git, "rev-parse", "HEAD"], text=True).strip())
        run = zbench("sweep", *arguments)
        assert run.code == 0
        warnings.append(run.err)
    first, second = commits
    words = f"may have run other code: git: commit was {first}, is {second}"
    assert [words in text for text in warnings] == [False, True]


def test_more_repeats_of_a_finished_run_are_added_to_it(zbench, sweep_file):
    """What `compare` advises: `zbench sweep --resume RUN --repeats N`."""
    first = zbench("sweep", sweep_file, "--json").document
    more = zbench("sweep", "--resume", first["run_id"], "--repeats", "3", "--json").document
    assert (more["run_id"], more["exit_code"]) == (first["run_id"], 0)
    assert more["trials"][: len(first["trials"])] == first["trials"]
    counts = Counter(record["trial_id"] for record in more["trials"])
    assert counts == dict.fromkeys({record["trial_id"] for record in first["trials"]}, 3)
    assert zbench("sweep", "--resume", first["run_id"], "--json").document == more


@pytest.mark.check
@pytest.mark.parametrize("command", [("sweep",), ("tune", "--budget", "1trials")], ids=["sweep", "tune"])
def test_trials_can_be_jobs(zbench, sweep_file, command):
    pytest.importorskip("submitit")
    settings = ("--slurm", "cluster=local", "--repeats", "1", "--set", "world_size=1")
    output = zbench(*command, sweep_file, *settings)
    assert output.code == 0, output.err
    assert {r.correctness.verdict for r in load_records(only_run())} == {"identical"}


def test_a_sweep_out_of_time_names_no_best_yet(zbench, sweep_file, monkeypatch):
    now = [0.0]
    keep = sweeps.Rounds.keep
    monkeypatch.setattr(sweeps, "time", SimpleNamespace(monotonic=lambda: now[0]))

    def keep_and_wait(rounds, trial, record):
        now[0] += 7200
        keep(rounds, trial, record)

    monkeypatch.setattr(sweeps.Rounds, "keep", keep_and_wait)
    stages = ("--set", "axes.zero_stage=[0, 1, 2]", "--set", "run.heat=2")
    output = zbench("sweep", sweep_file, "--max-time", "1h", *stages)
    assert output.code == 3
    assert re.search(r"warning: stopped at --max-time; [45] repeats left; continue with", output.err)
    assert "zbench sweep sweep.yaml --resume" in output.err
    assert "error" not in output.err
    assert "*" not in zbench("list").out
    for out in (output.out, zbench("show", "last").out):
        assert re.search(r"no best yet: [12] configurations? left to run", out)
        assert "*" not in out
    assert "no best trial yet" in zbench("export", "last", "--trial", "best").err


SCRIPT = """
workload:
  command: python train.py --bucket-mb {bucket_mb} --schedule {schedule}
  parameters: {bucket_mb: 25, schedule: cosine}
  step_times: {console: transformers}
  checkpoint: model.safetensors
run: {repeats: 1}
axes: {bucket_mb: [25, 0.5], schedule: [cosine, linear]}
"""


def test_a_flag_of_a_script_is_an_axis_in_every_command(zbench, tmp_path):
    file = tmp_path / "own.yaml"
    file.write_text(SCRIPT)
    plan = zbench("plan", file, "--set", "verify.same_training=[bucket_mb]").out
    assert "bucket_mb=0.5 schedule=linear" in plan
    assert plan.splitlines()[-3:] == [
        "verdicts: the script runs two to four times for each of 2 references",
        "must train the same (verify.same_training): bucket_mb",
        "may train otherwise, differences are told: schedule",
    ]
    document = zbench("sweep", file, "--json", "--set", "schedule=linear").document
    assert [record["axes"] for record in document["trials"]].count({"bucket_mb": 0.5, "schedule": "linear"})
    run = document["run_dir"]
    resumed = zbench("sweep", "--resume", run, "--json").document
    assert len(resumed["trials"]) == 2, "nothing is left"
    shown = zbench("show", run, "--relative-to", "bucket_mb=25", "--by", "schedule", "--json").document
    assert [row["axes"]["bucket_mb"] for row in shown["relative"]] == [0.5]
    zbench("sweep", file, "--set", "schedule=linear")
    assert "bucket_mb=0.5" in zbench("compare", run, "last").out
    (series, *_) = zbench("history", "--match", "bucket_mb=0.5", "--json").document["series"]
    assert series["axes"] == {"bucket_mb": 0.5, "schedule": "linear"}
    exported = zbench("export", run, "--trial", document["trials"][0]["trial_id"], "--to", "deepspeed")
    assert "bucket_mb" not in exported.out
    assert "bucket_mb" in exported.err
    assert zbench("publish", "results", "--to", "site").code == 0
    file.write_text(SCRIPT.replace("[25, 0.5]", "{low: 1, high: 50}"))
    tuned = zbench("tune", file, "--budget", "2trials", "--json").document
    assert {tuple(record["axes"]) for record in tuned["trials"]} == {("bucket_mb", "schedule")}
