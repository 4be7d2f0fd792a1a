"""Ranks of one host listen at the loopback interface and nowhere else: rendezvous, gloo and TCP stores."""

import re
import socket
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta

from torch._C._distributed_c10d import TCPStore

from tests.worker.conftest import trial
from tests.worker.engines import listening
from zbench.launch.trial import TrialRunner
from zbench.worker.process import loopback_store


def test_ranks_of_a_trial_listen_at_the_loopback_interface_alone(runner: TrialRunner) -> None:
    wanted = trial({"engine": "tests.worker.engines:says_where_it_listens", "zero_stage": 3})
    record = runner.run(wanted)
    assert record.error is None
    (logs,) = runner.run_dir.glob(f"logs/{record.trial_id}-r0")
    said = [re.search(r"listens at (.*)\.", file.read_text()) for file in sorted(logs.glob("*rank*"))]
    addresses = [found[1].split(",") for found in said if found is not None]
    assert len(addresses) == 2
    for one in addresses:
        assert set(one) == {"127.0.0.1"}, "gloo listens there, and nothing elsewhere"


def test_the_store_of_ranks_that_meet_at_a_port_of_this_host_listens_there_alone() -> None:
    """torch's own listens at every address, whatever host it is told."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    before = listening()

    def join(rank: int) -> TCPStore:
        return loopback_store(f"tcp://127.0.0.1:{port}", rank, 2, timedelta(seconds=30))

    with ThreadPoolExecutor(2) as both:
        first, second = both.map(join, range(2))
    first.set("word", "spoken")
    assert second.get("word") == b"spoken"
    new = listening()
    for address in before:
        new.remove(address)
    assert new == ["127.0.0.1"]
