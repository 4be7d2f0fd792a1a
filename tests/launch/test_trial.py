"""Whatever a trial does, it ends, it is recorded as what it was, and nothing of it is left."""

import itertools
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import SimpleNamespace

import psutil
import pytest

from zbench.launch.process import client
from zbench.launch.trial import TrialRunner

from .fake_worker import TIMING
from .processes import gone, hurried_clock, text_of, until


def server_pid(runner: TrialRunner) -> int:
    """Return the process id of the server that is alive now."""
    return runner.executor.launchers[None].wait_until_ready().pid


@pytest.fixture
def deadline(monkeypatch: pytest.MonkeyPatch) -> threading.Event:
    """Return an event that lets every deadline that runs be over soon, however fast this machine is."""
    over = threading.Event()
    monkeypatch.setattr(client, "time", hurried_clock(over.is_set))
    return over


@pytest.mark.parametrize("stops", [1, 3])
def test_a_command_that_was_stopped_for_hours_records_no_timeout(runner, trial, notices, monkeypatch, stops):
    """Ctrl-Z and `fg`, or a suspended laptop: between two looks at the clock, hours have passed."""
    looks = itertools.count()

    def monotonic() -> float:
        return time.monotonic() + 1e5 * min(next(looks), stops)

    monkeypatch.setattr(client, "time", SimpleNamespace(monotonic=monotonic))
    record = runner.run(trial(timeout=120))
    assert (record.outcome, notices) == ("ok", [])
    assert next(looks) > stops
    assert record.elapsed_s < 1e4


def test_what_ranks_have_reported_counts_before_the_clock(runner, trial, monkeypatch):
    """The ranks ended while the command was stopped, and the time of the trial was over soon after."""
    monkeypatch.setattr(client, "_POLL_SECONDS", 30.0)
    looks = itertools.count()
    clock = SimpleNamespace(monotonic=lambda: time.monotonic() + 1e5 * next(looks))
    monkeypatch.setattr(client, "time", clock)
    assert runner.run(trial(timeout=8)).outcome == "ok"


@contextmanager
def once_rank_1_waits(runner: TrialRunner, act: Callable[[int], object]) -> Iterator[None]:
    """Call `act` with the process id of rank 1 while the block runs a trial."""
    thread = threading.Thread(target=lambda: act(int(text_of(runner.run_dir / "rank1.pid"))))
    thread.start()
    yield
    thread.join()


def test_steps_that_stall_are_named_in_a_warning(runner, trial):
    steps = [0.01, 0.01, 0.01, 0.3] * 2
    timing = TIMING | {"step_seconds": steps}
    warning = "steps stall: 1 step in 4 takes 300 ms, the median step 10 ms"
    assert warning in runner.run(trial(result={"timing": timing})).warnings


@pytest.mark.parametrize(
    ("options", "outcome", "kind", "message"),
    [
        ({"do": "crash", "rank": 1}, "crashed", "crashed", "rank 1: RuntimeError: the model fell over"),
        ({"do": "exit", "rank": 1}, "crashed", "crashed", "rank 1 exited with status 3 and no message"),
        ({"do": "die", "rank": 1}, "crashed", "killed", "rank 1 was killed from outside by SIGKILL"),
        ({"do": "segfault", "rank": 1}, "crashed", "crashed", "rank 1 was killed by SIGSEGV"),
    ],
)
def test_failure_is_named_with_its_rank_and_log(runner, trial, options, outcome, kind, message):
    record = runner.run(trial(**options))
    assert record.outcome == outcome
    assert (record.error.kind, record.error.message) == (kind, message)
    assert record.error.log == f"logs/{record.trial_id}-r0/rank{options.get('rank', 0)}.log"
    assert record.timing is None
    assert record.correctness.verdict == "unchecked"


def test_hang_ends_at_the_deadline_with_the_stacks_in_the_logs(runner, trial, deadline):
    with once_rank_1_waits(runner, lambda _: deadline.set()):
        record = runner.run(trial(do="wait", rank=1, timeout=120))
    assert record.outcome == "timeout"
    assert record.error.message.startswith("not finished after 120 s (run.timeout)")
    assert "in _report_pid" in (runner.run_dir / record.error.log).with_name("rank1.log").read_text()


def test_peers_of_a_dead_rank_are_not_waited_for_until_the_deadline(runner, trial):
    record = runner.run(trial(do="crash", rank=1, peers="wait", timeout=100))
    assert record.outcome == "crashed"
    assert record.error.message == "rank 1: RuntimeError: the model fell over"
    log = (runner.run_dir / record.error.log).read_text()
    assert log.startswith("about to fail\n")
    assert "RuntimeError: the model fell over" in log


def test_process_that_a_rank_leaves_behind_is_ended(runner, trial):
    assert runner.run(trial(do="orphan")).outcome == "ok"
    assert not psutil.pid_exists(int((runner.run_dir / "orphan.pid").read_text()))


def test_ranks_run_in_a_group_and_session_of_their_own_on_cores_of_their_own(runner, trial):
    runner.run(trial(do="describe", rank="all"))
    logs = sorted((runner.run_dir / "logs").glob("*-r0/rank*.log"))
    ranks = [dict(pair.split("=") for pair in log.read_text().split()) for log in logs]
    assert len({rank["group"] for rank in ranks}) == 1
    assert all(int(rank["session"]) != os.getsid(0) for rank in ranks)
    if len(os.sched_getaffinity(0)) >= 2:
        assert not set(ranks[0]["cpus"].split(",")) & set(ranks[1]["cpus"].split(","))


def test_killed_rank_is_run_again_once(runner, trial, notices):
    with once_rank_1_waits(runner, lambda pid: os.kill(pid, signal.SIGKILL)):
        record = runner.run(trial(do="wait_once", rank=1))
    assert record.outcome == "ok"
    assert notices == ["rank 1 was killed from outside by SIGKILL; running it again"]


@pytest.mark.parametrize("damage", [lambda file: file.write_text("referense"), lambda file: file.unlink()])
def test_a_damaged_reference_is_computed_again(runner, trial, notices, damage):
    judged = trial(do="judge", rank="all")
    assert runner.run(judged).correctness.verdict == "identical"
    (file,) = (runner.run_dir / "references").iterdir()
    for repeat in (1, 2):
        if repeat == 1:
            damage(file)
        record = runner.run(judged, repeat=repeat)
        assert (record.outcome, record.correctness.verdict) == ("ok", "identical")
    assert (runner.run_dir / "reference.calls").read_text() == "xx"
    (notice,) = notices
    assert notice.endswith("computing it again")


def test_killed_server_takes_its_ranks_along_and_is_replaced(runner, trial, notices):
    server = server_pid(runner)
    pids = []

    def kill_server(pid: int) -> None:
        pids.append(pid)
        os.kill(server, signal.SIGKILL)

    with once_rank_1_waits(runner, kill_server):
        record = runner.run(trial(do="wait_once", rank=1))
    assert record.outcome == "ok"
    assert server_pid(runner) != server
    until(lambda: gone(pids[0]), "the rank ends with its server")
    assert notices == ["the trial server was killed from outside; running it again"]


@pytest.mark.parametrize("victim", ["server", pytest.param("reaper", marks=pytest.mark.check)])
def test_process_in_a_session_of_its_own_does_not_outlive_a_killed_server(runner, trial, victim):
    server = psutil.Process(server_pid(runner))
    target = server.pid if victim == "server" else server.ppid()
    with once_rank_1_waits(runner, lambda _: os.kill(target, signal.SIGKILL)):
        record = runner.run(trial(do="orphan_and_wait", rank=1))
    assert record.outcome == "ok"
    orphan = int((runner.run_dir / "orphan.pid").read_text())
    until(lambda: gone(orphan), "the process that a rank started in its own session ends")


def test_stopped_server_is_replaced_when_the_next_repeat_starts(runner, trial, notices, monkeypatch):
    monkeypatch.setattr(client, "_END_SECONDS", 4.0)
    stopped = server_pid(runner)
    os.kill(stopped, signal.SIGSTOP)
    assert runner.run(trial(world_size=1)).outcome == "ok"
    assert notices == ["the trial server was killed from outside; running it again"]
    until(lambda: gone(stopped), "the stopped server ends")


def test_stopped_rank_is_run_again(runner, trial, notices, deadline):
    def stop(pid: int) -> None:
        os.kill(pid, signal.SIGSTOP)
        until(lambda: psutil.Process(pid).status() == psutil.STATUS_STOPPED, "the rank stops")
        deadline.set()

    with once_rank_1_waits(runner, stop):
        record = runner.run(trial(do="wait_once", rank=1, timeout=120))
    assert record.outcome == "ok"
    assert notices == [
        "rank 1 was stopped from outside; the others waited for it until run.timeout; running it again"
    ]


def test_reference_is_computed_once_for_all_trials_that_share_it(runner, trial):
    for stage in (0, 1):
        assert runner.run(trial(stage=stage)).correctness.verdict == "identical"
    assert len(list((runner.run_dir / "references").iterdir())) == 1
    assert len((runner.run_dir / "reference.calls").read_text()) == 1


def test_failed_reference_leaves_the_trial_unchecked_and_says_why(runner, trial):
    record = runner.run(trial(reference="fails"))
    assert record.outcome == "ok"
    assert record.correctness.verdict == "unchecked"
    why = "not verified: the reference could not be computed: RuntimeError: no reference today"
    assert record.warnings == [why]


def test_interruption_ends_the_trial_and_its_processes(runner, trial):
    main = threading.main_thread().ident
    server = psutil.Process(server_pid(runner))
    interrupt = once_rank_1_waits(runner, lambda _: signal.pthread_kill(main, signal.SIGINT))
    with interrupt, pytest.raises(KeyboardInterrupt):
        runner.run(trial(do="wait", rank=1))
    assert not psutil.pid_exists(int((runner.run_dir / "rank1.pid").read_text()))
    until(lambda: server.children(recursive=True) == [], "nothing of the trial is left")
