"""How an end is named, where only the launcher can know."""

import signal

import pytest

from zbench.launch.client import GroupEnd
from zbench.launch.outcome import classify, kernel_oom_kills
from zbench.worker.job import write_error


def ended(*codes: int, timed_out: bool = False) -> GroupEnd:
    return GroupEnd(len(codes), dict(enumerate(codes)), timed_out)


def judge(end: GroupEnd, tmp_path, oom_kills: int = 0, memory_limit: int | None = None):
    return classify(
        end,
        result_path=str(tmp_path / "result"),
        deadline=5.0,
        kernel_oom_kills=oom_kills,
        log="logs/x",
        memory_limit=memory_limit,
    )


def test_kill_by_the_kernel_is_out_of_memory(tmp_path):
    outcome, error = judge(ended(0, -signal.SIGKILL), tmp_path, oom_kills=1)
    assert outcome == "oom"
    assert (error.kind, error.log) == ("oom", "logs/x/rank1.log")
    assert "machine ran out of memory" in error.message


def test_kill_by_someone_is_not(tmp_path):
    outcome, error = judge(ended(0, -signal.SIGKILL), tmp_path)
    assert (outcome, error.kind) == ("crashed", "killed")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGINT])
def test_signals_that_programs_do_not_send_to_themselves_come_from_outside(tmp_path, number):
    outcome, error = judge(ended(0, -number), tmp_path)
    assert (outcome, error.kind) == ("crashed", "killed")
    assert number.name in error.message


def test_abort_under_a_memory_limit_is_out_of_memory(tmp_path):
    end = ended(0, -signal.SIGABRT)
    assert judge(end, tmp_path)[0] == "crashed"
    outcome, error = judge(end, tmp_path, memory_limit=20 << 20)
    assert outcome == "oom"
    assert error.message == "rank 1 ended by SIGABRT under run.memory_limit of 20 MiB"


def test_killed_rank_outweighs_what_its_peers_say(tmp_path):
    write_error(str(tmp_path / "result"), 0, "peer_lost", "Connection closed by peer")
    _, error = judge(ended(1, -signal.SIGBUS), tmp_path)
    assert error.message == "rank 1 was killed by SIGBUS"


def test_error_that_led_to_the_deadline_outweighs_the_deadline(tmp_path):
    write_error(str(tmp_path / "result"), 1, "oom", "no room")
    outcome, error = judge(ended(0, 1, timed_out=True), tmp_path)
    assert (outcome, error.message) == ("oom", "rank 1: no room")


@pytest.mark.parametrize(("end", "outcome"), [(ended(0, 0), "ok"), (ended(0, timed_out=True), "timeout")])
def test_end_without_errors(tmp_path, end, outcome):
    assert judge(end, tmp_path)[0] == outcome


def test_kernels_count_is_a_number():
    assert kernel_oom_kills() >= 0
