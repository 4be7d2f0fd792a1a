"""Processes that are no ranks may connect to a rank's socket, and change nothing."""

import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import pytest

from zbench.engine.transport.peers import PeerListener

STRANGER = """
import socket, sys, time
peer = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
peer.connect(bytes.fromhex(sys.argv[1]))
message = bytes.fromhex(sys.argv[2])
if message:
    peer.send(message)
print("connected", flush=True)
time.sleep(60)
"""
HELLO_OF_RANK_1 = (1).to_bytes(8, "little") + (0).to_bytes(8, "little")


@pytest.mark.parametrize(
    "message", [b"", b"abc", HELLO_OF_RANK_1], ids=["silent", "garbage", "impersonating"]
)
def test_strangers_are_ignored(message: bytes) -> None:
    low, high = (PeerListener(rank, 2, 20.0) for rank in range(2))
    stranger = subprocess.Popen(
        [sys.executable, "-c", STRANGER, low.name.hex(), message.hex()], stdout=subprocess.PIPE, text=True
    )
    try:
        assert stranger.stdout is not None
        assert stranger.stdout.readline() == "connected\n"
        pids = [os.getpid(), os.getpid()]
        high.connect([low.name, high.name], pids)
        low.accept(pids)
        with ThreadPoolExecutor(1) as other:
            heard = other.submit(high.channels[0].exchange, (1, 2, 4))
            assert low.channels[0].exchange((1, 2, 3)) == [(1, 2, 3), (1, 2, 4)]
            assert heard.result() == [(1, 2, 3), (1, 2, 4)]
        assert stranger.poll() is None
    finally:
        stranger.kill()
        stranger.communicate()
        for listener in (low, high):
            listener.close()
            for channel in listener.channels:
                channel.close()


def test_a_socket_of_another_process_is_not_a_rank() -> None:
    low, high = (PeerListener(rank, 2, 20.0) for rank in range(2))
    with pytest.raises(ConnectionRefusedError, match="belongs to another process"):
        high.connect([low.name, high.name], [os.getppid(), os.getpid()])
    for listener in (low, high):
        listener.close()
        for channel in listener.channels:
            channel.close()
