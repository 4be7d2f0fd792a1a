"""How an end is named, where only the launcher can know."""

import signal
from pathlib import Path

import pytest

from zbench.job.failures import NO_ROOM_STATUS
from zbench.launch.process import outcome
from zbench.launch.process.client import GroupEnd
from zbench.launch.process.outcome import classify
from zbench.record.record import Failure


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


FROM_OUTSIDE = (signal.SIGKILL, signal.SIGTERM, signal.SIGHUP, signal.SIGINT)
KILL, ABORT = signal.SIGKILL, signal.SIGABRT
KERNEL = "rank 1 was killed by the kernel: the machine ran out of memory"
LIMIT = "rank 1 ended by SIGABRT under run.memory_limit of 20 MiB"


@pytest.mark.parametrize(
    ("number", "circumstances", "outcome", "kind", "message"),
    [
        (KILL, {"oom_kills": 1}, "oom", "oom", KERNEL),
        *((n, {}, "crashed", "killed", f"rank 1 was killed from outside by {n.name}") for n in FROM_OUTSIDE),
        (ABORT, {}, "crashed", "crashed", "rank 1 was killed by SIGABRT"),
        (ABORT, {"memory_limit": 20 << 20}, "oom", "oom", LIMIT),
    ],
)
def test_what_a_signal_means(tmp_path, number, circumstances, outcome, kind, message):
    assert judge(ended(0, -number), tmp_path, **circumstances) == (
        outcome,
        Failure(kind, message, "logs/x/rank1.log"),
    )


@pytest.mark.parametrize(
    ("status", "kind", "says"),
    [(NO_ROOM_STATUS, "storage", "is TMPDIR full?"), (3, "crashed", "rank 1 exited with status 3")],
)
def test_a_rank_that_ends_without_a_word_is_told_by_its_status(tmp_path, status, kind, says):
    outcome, error = judge(ended(0, status), tmp_path)
    assert (outcome, error.kind, says in error.message) == ("crashed", kind, True)


@pytest.mark.parametrize(("text", "kills"), [("pgfault 9\noom_kill 7\n", 7), (None, 0)])
def test_the_kernels_count_of_kills_is_nought_where_it_has_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str | None, kills: int
) -> None:
    if text is not None:
        (tmp_path / "vmstat").write_text(text)
    monkeypatch.setattr(outcome, "_VMSTAT", tmp_path / "vmstat")
    assert outcome.kernel_oom_kills() == kills
