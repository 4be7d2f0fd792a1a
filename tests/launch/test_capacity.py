"""A world size that cannot start is refused with what limits it."""

import pytest

from zbench.errors import UsageError
from zbench.launch import executors


def test_what_can_start_is_accepted():
    executors.check_world_size(1)


def test_too_many_ranks_are_refused_with_the_limit():
    most, _ = executors.max_ranks()
    with pytest.raises(
        UsageError, match=rf"run\.world_size: {most + 1} ranks cannot be started .* at most {most} "
    ):
        executors.check_world_size(most + 1)


def test_one_host_starts_64_ranks_at_most():
    assert executors.max_ranks()[0] <= 64
    with pytest.raises(UsageError, match=r"--slurm or torchrun, or ask `zbench estimate`"):
        executors.check_world_size(4096)


def test_process_limit_counts(monkeypatch):
    monkeypatch.setattr(executors.resource, "getrlimit", lambda _: (67, 67))
    assert executors.max_ranks() == (3, "67 processes (ulimit -u)")
