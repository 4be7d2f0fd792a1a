"""Cores of ranks, and a server that does not start."""

import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from zbench.errors import ZbenchError
from zbench.launch.process import client
from zbench.launch.process.client import WarmServer
from zbench.launch.process.local import assign, usable_cores


@given(st.integers(1, 70), st.integers(1, 64), st.integers(1, 2))
def test_ranks_share_no_core_while_there_are_enough(world_size, cores, siblings):
    topology = [tuple(range(core * siblings, (core + 1) * siblings)) for core in range(cores)]
    given_out = assign(world_size, topology)
    assert len(given_out) == world_size
    if cores < world_size:
        assert given_out == [None] * world_size
        return
    assert len({len(cpus) for cpus in given_out}) == 1
    everything = [cpu for cpus in given_out for cpu in cpus]
    assert len(everything) == len(set(everything))
    assert {cpu // siblings for cpu in given_out[0]}.isdisjoint(
        cpu // siblings for cpus in given_out[1:] for cpu in cpus
    )


def test_usable_cores_are_those_of_this_process():
    before = os.sched_getaffinity(0)
    assert sorted(cpu for core in usable_cores() for cpu in core) == sorted(before)
    try:
        os.sched_setaffinity(0, {min(before)})
        assert usable_cores() == [(min(before),)]
    finally:
        os.sched_setaffinity(0, before)


def test_a_server_that_starts_too_slowly_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Seen on a machine without a free core: "the trial server was killed twice while it started"."""
    (tmp_path / "endless.py").write_text("import time\n\ntime.sleep(600)\n")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")]))
    monkeypatch.setattr(client, "_START_SECONDS", 1.0)
    server = WarmServer(("endless",), tmp_path)
    with pytest.raises(ZbenchError, match=r"did not start within 1 s: other work keeps this machine busy"):
        server.wait_until_ready()
    assert server._process.returncode is not None, "nothing is left"
