"""How jobs are submitted and cancelled, and how often SLURM is asked: with its commands as mocks."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from zbench.errors import UsageError
from zbench.launch.cluster import slurm_jobs
from zbench.launch.cluster.slurm_jobs import Cluster, SlurmOptions


class FakeSubmitit:
    """Takes arrays until `refusal`, an exception, is set. arrays: how many jobs each has."""

    def __init__(self) -> None:
        self.arrays: list[int] = []
        self.parameters: dict[str, Any] = {}
        self.refusal: Exception | None = None
        self.most = 9999

    def AutoExecutor(self, **_: object) -> "FakeSubmitit":  # noqa: N802 - submitit's name
        return self

    def update_parameters(self, **parameters: Any) -> None:
        self.parameters |= parameters

    @contextmanager
    def batch(self) -> Iterator[None]:
        self.arrays.append(0)
        yield

    def submit(self, call: object) -> SimpleNamespace:
        if self.refusal is not None and sum(self.arrays) == self.most:
            raise self.refusal
        self.arrays[-1] += 1
        return SimpleNamespace(job_id=f"{len(self.arrays)}_{self.arrays[-1]}")


class Commands:
    """SLURM's commands: what was called, what `squeue` answers, and a time of their own."""

    def __init__(self, patch: pytest.MonkeyPatch, folder: Path) -> None:
        self.called: list[tuple[str, ...]] = []
        self.states: str | None = ""
        self.now = 100.0
        self.submitit = FakeSubmitit()
        self.folder = folder
        patch.setattr(slurm_jobs, "_output", self._output)
        patch.setattr(slurm_jobs, "require_slurm", lambda _: self.submitit)
        patch.setattr(slurm_jobs, "time", SimpleNamespace(monotonic=lambda: self.now))
        patch.setattr(slurm_jobs.getpass, "getuser", lambda: "me")

    def _output(self, *words: str) -> str | None:
        self.called.append(words)
        return self.states

    def cluster(self, *, kind: str = "slurm") -> Cluster:
        return Cluster(SlurmOptions(cluster=kind), "mine", self.folder)


@pytest.fixture
def commands(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Commands:
    return Commands(monkeypatch, tmp_path / "jobs")


@pytest.mark.parametrize(
    ("kind", "was_there", "cancels"), [("slurm", True, 1), ("slurm", False, 0), ("local", True, 0)]
)
def test_jobs_that_an_earlier_command_left_are_cancelled(
    commands: Commands, kind: str, was_there: bool, cancels: int
) -> None:
    if was_there:
        commands.folder.mkdir()
    commands.cluster(kind=kind)
    assert commands.called == [("scancel", "--name=mine", "--user=me")] * cancels


def test_jobs_are_arrays_of_at_most_500_under_one_name(commands: Commands) -> None:
    jobs = commands.cluster().submit([lambda: None] * 1001, {"nodes": 2})
    assert (commands.submitit.arrays, len(jobs)) == ([500, 500, 1], 1001)
    assert commands.submitit.parameters == {"nodes": 2, "name": "mine"}


@pytest.mark.parametrize(("text", "says"), [("no\nsuch partition", "no such partition"), ("", "ValueError")])
def test_a_refused_array_cancels_those_before_it(commands: Commands, text: str, says: str) -> None:
    commands.submitit.refusal, commands.submitit.most = ValueError(text), 500
    with pytest.raises(UsageError, match=rf"^SLURM refused the job: {says}; see the --slurm options"):
        commands.cluster().submit([lambda: None] * 501, {})
    assert [(words[0], len(words)) for words in commands.called] == [("scancel", 501)]


def test_states_are_slurms_and_a_cancel_names_its_jobs(commands: Commands) -> None:
    cluster = commands.cluster()
    one, two = cluster.submit([lambda: None] * 2, {})
    commands.states = "1_1|RUNNING\n1_2|NODE_FAIL|more\n"
    assert [cluster.state(job) for job in (one, two)] == ["RUNNING", "NODE_FAIL|more"]
    assert [words[0] for words in commands.called] == ["squeue"], "once for all jobs"
    cluster.cancel([one, two], only_waiting=True)
    cluster.cancel([one])
    cluster.cancel([])
    assert commands.called[1:] == [("scancel", "--state=PENDING", "1_1", "1_2"), ("scancel", "1_1")]
    commands.states = None
    assert cluster.state(one) == "RUNNING", "SLURM does not answer"
