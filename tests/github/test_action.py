"""The GitHub Action's script in its outcomes, and the workflows' rules: pinned, least rights."""

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from ruamel.yaml import YAML

from tests.analysis.synthetic import BASE_ID, HEAD_ID, results, trial, write_run
from zbench.analysis.compare import compare_runs
from zbench.analysis.settings import Settings
from zbench.report.exports import document

ROOT = Path(__file__).parents[2]
FILES = [ROOT / "action.yml", *sorted((ROOT / ".github" / "workflows").glob("*.yml"))]
STEPS = [0.1, 0.101, 0.099, 0.1, 0.1005, 0.0995]


class Outcome(NamedTuple):
    code: str
    summary: str
    console: str
    directory: Path


class Job:
    """A runner's environment with a `zbench` on its path: the real one, or a stand-in."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        (directory / "bin").mkdir()
        self.install(f'exec {sys.executable} -P -m zbench.cli.main "$@"')

    def install(self, body: str) -> None:
        command = self.directory / "bin" / "zbench"
        command.write_text(f"#!/usr/bin/env bash\n{body}\n")
        command.chmod(0o755)

    def git(self, *words: str) -> str:
        command = ["git", "-c", "user.name=test", "-c", "user.email=test@example.org", *words]
        return subprocess.run(
            command, cwd=self.directory, capture_output=True, text=True, check=True
        ).stdout.strip()

    def run(self, **inputs: str) -> Outcome:
        output, summary = self.directory / "output", self.directory / "summary"
        output.write_text("")
        summary.write_text("")
        environment = {
            "PATH": f"{self.directory / 'bin'}:{os.environ['PATH']}",
            "PYTHONPATH": str(ROOT),
            "RUNNER_TEMP": str(self.directory),
            "XDG_CACHE_HOME": str(self.directory / "cache"),
            "GITHUB_OUTPUT": str(output),
            "GITHUB_STEP_SUMMARY": str(summary),
        } | {f"ZBENCH_{key}": value for key, value in inputs.items()}
        script = str(ROOT / ".github" / "compare.sh")
        done = subprocess.run(
            [script], cwd=self.directory, env=environment, capture_output=True, text=True, check=True
        )
        outputs = dict(line.split("=", 1) for line in output.read_text().splitlines())
        return Outcome(
            outputs["exit-code"], summary.read_text(), done.stdout + done.stderr, Path(outputs["directory"])
        )


@pytest.fixture
def job(tmp_path: Path) -> Job:
    return Job(tmp_path)


@pytest.fixture(scope="module")
def baseline(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Results with one run, kept as the baseline `main`."""
    job = Job(tmp_path_factory.mktemp("base"))
    write_run(job.directory / "results" / "example" / BASE_ID, trial(STEPS))
    words = ["zbench", "compare", BASE_ID, "--save-baseline", "main", "-o", "results"]
    environment = {"PATH": f"{job.directory / 'bin'}:{os.environ['PATH']}", "PYTHONPATH": str(ROOT)}
    subprocess.run(words, cwd=job.directory, env=environment, check=True, capture_output=True)
    return job.directory / "results"


NO_CHANGE_COUNTS = {"THRESHOLDS": "step_time=90%\ntraffic_bytes=1%\n"}


@pytest.mark.parametrize(
    ("factor", "inputs", "code", "says"),
    [
        (1.0, {}, "0", "| configuration |"),
        pytest.param(1.06, {}, "3", "| configuration |", marks=pytest.mark.check),
        (1.3, {}, "1", "| configuration |"),
        pytest.param(1.3, NO_CHANGE_COUNTS, "0", "| configuration |", marks=pytest.mark.check),
        (1.3, {"FAIL_ON": "correctness"}, "0", "| configuration |"),
        pytest.param(1.0, {"THRESHOLDS": "step_time=3"}, "2", "write 3%", marks=pytest.mark.check),
    ],
)
def test_a_run_is_compared_with_the_baseline(
    job: Job, baseline: Path, factor: float, inputs: dict[str, str], code: str, says: str
) -> None:
    shutil.copytree(baseline, job.directory / "results")
    write_run(job.directory / "results" / "example" / HEAD_ID, trial([factor * step for step in STEPS]))
    outcome = job.run(MODE="stored", **inputs)
    assert outcome.code == code
    assert outcome.summary.startswith("<!-- zbench-compare -->")
    assert says in outcome.summary
    files = {path.name for path in outcome.directory.iterdir()}
    assert code == "2" or {"compare.md", "compare.json", "compare.junit.xml"} <= files


def test_a_first_run_without_a_baseline_passes_with_a_notice(job: Job) -> None:
    write_run(job.directory / "results" / "example" / HEAD_ID, trial(STEPS))
    outcome = job.run(MODE="stored")
    assert outcome.code == "0"
    assert "::notice title=zbench::There is no baseline" in outcome.console
    assert "There is no baseline" in outcome.summary


@pytest.fixture
def repository(job: Job) -> Job:
    job.git("init", "-q", "-b", "main")
    (job.directory / "note").write_text("first")
    job.git("add", "note")
    job.git("commit", "-q", "-m", "without a project")
    (job.directory / "pyproject.toml").write_text("[project]\n")
    job.git("add", "pyproject.toml")
    job.git("commit", "-q", "-m", "base")
    job.git("commit", "-q", "--allow-empty", "-m", "head")
    job.install('echo "$@"; echo progress >&2; exit 3')
    return job


@pytest.mark.parametrize(
    ("inputs", "code", "says"),
    [
        ({"BLOCKS": "8:16"}, "3", "compare {base} {head} --paired --sweep s --blocks 8:16"),
        ({"BASE": "HEAD~1"}, "3", "compare HEAD~1 "),
        ({"BASE": "HEAD~2"}, "0", "has no pyproject.toml"),
    ],
    ids=["merge base", "named", "without a project"],
)
def test_paired_mode_compares_a_base_with_what_is_checked_out(
    repository: Job, inputs: dict[str, str], code: str, says: str
) -> None:
    outcome = repository.run(SWEEP="s", **inputs)
    base, head = (repository.git("rev-parse", revision) for revision in ("HEAD^", "HEAD"))
    assert outcome.code == code
    assert says.format(base=base, head=head) in outcome.console + outcome.summary
    assert ("progress" in outcome.console) == (code == "3")


@pytest.mark.parametrize(
    ("inputs", "code", "says"),
    [({}, "0", "::notice"), ({"BASE": "no-such-revision"}, "2", "no such revision in this repository")],
)
def test_a_repository_without_that_base(job: Job, inputs: dict[str, str], code: str, says: str) -> None:
    """Without a merge base there is nothing to compare with yet; a wrong name is a mistake."""
    job.git("init", "-q", "-b", "main")
    outcome = job.run(SWEEP=str(ROOT / ".github" / "performance-sweep.yaml"), **inputs)
    assert outcome.code == code
    assert says in outcome.console + outcome.summary


def test_runs_are_added_to_the_site_on_a_branch(job: Job) -> None:
    """The branch begins empty, and keeps a run whose records are gone."""
    subprocess.run(["git", "init", "-q", "--bare", str(job.directory / "origin")], check=True)
    job.git("init", "-q", "-b", "main")
    job.git("commit", "-q", "--allow-empty", "-m", "code")
    job.git("remote", "add", "origin", str(job.directory / "origin"))
    for run_id in (BASE_ID, HEAD_ID):
        write_run(job.directory / "results" / "example" / run_id, trial(STEPS))
        environment = {"PATH": f"{job.directory / 'bin'}:{os.environ['PATH']}", "PYTHONPATH": str(ROOT)}
        environment |= {"RUNNER_TEMP": str(job.directory), "HOME": str(job.directory)}
        script = str(ROOT / ".github" / "publish.sh")
        subprocess.run([script], cwd=job.directory, env=environment, check=True, capture_output=True)
        shutil.rmtree(job.directory / "results")
    job.git("fetch", "-q", "origin", "gh-pages")
    files = job.git("ls-tree", "-r", "--name-only", "FETCH_HEAD").splitlines()
    assert {f"runs/example/{run_id}.html" for run_id in (BASE_ID, HEAD_ID)} | {"index.html"} <= {*files}
    assert ".lock" not in files
    assert BASE_ID in job.git("show", "FETCH_HEAD:index.html")


def load(path: Path) -> dict[str, Any]:
    return dict(YAML(typ="safe").load(path))


def steps_of(path: Path) -> Iterator[dict[str, Any]]:
    document = load(path)
    if "runs" in document:
        yield from document["runs"]["steps"]
    for job in document.get("jobs", {}).values():
        yield from job["steps"]


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_actions_are_pinned_and_no_text_of_an_event_is_pasted_into_a_script(path: Path) -> None:
    for line in path.read_text().splitlines():
        if "uses:" in line and "uses: ./" not in line:
            assert re.search(r"uses: [\w-]+/[\w-]+@[0-9a-f]{40} # v\d+\.\d+\.\d+$", line), line
    for step in steps_of(path):
        assert re.search(r"^\./$|@[0-9a-f]{40}$", step.get("uses", "./")), step
        assert "${{" not in step.get("run", ""), step


@pytest.mark.parametrize("name", ["publish.yml", "wheel.yml"])
def test_what_builds_and_publishes_is_installed_by_hash(name: str) -> None:
    for step in steps_of(ROOT / ".github" / "workflows" / name):
        for line in re.findall(r".*pip install.*", step.get("run", "")):
            assert line.endswith("--require-hashes --only-binary :all: -r .github/publish-requirements.txt")
    listed = (ROOT / ".github" / "publish-requirements.txt").read_text().splitlines()[1:]
    assert all(re.fullmatch(r"[\w-]+==[\d.]+( --hash=sha256:[0-9a-f]{64})+", line) for line in listed)


HOSTILE = "`|\n\n@everyone [x](http://evil.example) <img src=x> www.evil.example #1"


def commented(path: Path, document: object) -> str:
    path.write_text(document if isinstance(document, str) else json.dumps(document))
    command = [sys.executable, "-I", str(ROOT / ".github" / "comment.py"), str(path)]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def test_the_comment_is_made_of_json_and_copies_no_text_as_it_is(tmp_path: Path) -> None:
    base, head = (results(trial(steps, axes={HOSTILE: HOSTILE})) for steps in (STEPS, [2 * s for s in STEPS]))
    whole = document.document(compare_runs(base, head, Settings()))
    text = commented(tmp_path / "compare.json", whole)
    assert text.startswith("<!-- zbench-compare -->\n### zbench\n\n**1 regression**\n")
    assert "| regression | +100.0% | 1e+04 → 5e+03 | identical → identical |" in text
    name = re.search(r"^\| `(.*?)` \|", text, re.MULTILINE)
    assert name is not None
    assert re.fullmatch(r"[\w .=+-]+", name[1])
    for changed in (
        {"answer": HOSTILE},
        {"step_time": {"change": HOSTILE}},
        {"axes": [HOSTILE]},
        {"base": HOSTILE},
    ):
        damaged = whole | {"trials": [whole["trials"][0] | changed]}
        assert "There is no comparison" in commented(tmp_path / "compare.json", damaged)
    for damaged in (HOSTILE, "[" * 100_000, [HOSTILE], {"trials": HOSTILE}):
        text = commented(tmp_path / "compare.json", damaged)
        assert "There is no comparison" in text
        assert "evil" not in text


@pytest.mark.parametrize("path", FILES[1:], ids=lambda path: path.name)
def test_rights_are_least(path: Path) -> None:
    document = load(path)
    rights = document["permissions"]
    if path.name == "performance-comment.yml":
        assert rights == {"actions": "read", "contents": "read", "pull-requests": "write"}
        (checkout,) = (step for step in steps_of(path) if "checkout" in step.get("uses", ""))
        assert checkout["with"]["ref"] == "${{ github.event.repository.default_branch }}", "no foreign code"
    elif path.name == "publish.yml":
        assert rights == {"contents": "read"}
        publish = document["jobs"]["publish"]
        assert publish.pop("permissions") == {"contents": "read", "id-token": "write"}
        assert (document.get(True) or document.get("on")) == {"push": {"tags": ["v*"]}}
    else:
        assert rights == {"contents": "read"}
    assert "pull_request_target" not in (document.get(True) or document.get("on"))
    for job in document["jobs"].values():
        assert "timeout-minutes" in job
        assert "permissions" not in job
    for step in steps_of(path):
        if "checkout" in step.get("uses", ""):
            assert step["with"]["persist-credentials"] is False


def test_the_artifact_is_always_uploaded_and_the_result_comes_last() -> None:
    *_, upload, last = steps_of(ROOT / "action.yml")
    assert "upload-artifact" in upload["uses"]
    assert upload["if"] == last["if"] == "always()"
    assert last["env"]["EXIT_CODE"] == "${{ steps.compare.outputs.exit-code }}"
    for code, expected in (("4", 4), ("0", 0), ("", 70)):
        assert (
            subprocess.run(["bash", "-c", last["run"]], env={"EXIT_CODE": code}, check=False).returncode
            == expected
        )


def test_every_input_reaches_the_script() -> None:
    action = load(ROOT / "action.yml")
    script = (ROOT / ".github" / "compare.sh").read_text()
    compare = next(step for step in steps_of(ROOT / "action.yml") if step.get("id") == "compare")
    for variable, value in compare["env"].items():
        assert variable in script
        assert value.removeprefix("${{ inputs.").removesuffix(" }}") in action["inputs"]
