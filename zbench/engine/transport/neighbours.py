"""Notices the end of another rank's process where no collective does: NCCL waits on for one that is gone.

Each rank holds a connection to the next one. The kernel closes it with that process, whatever ended it, and
keeps it while the process is stopped. Nothing is sent.
"""

import socket
from contextlib import suppress
from datetime import timedelta
from typing import Any

from torch._C._distributed_c10d import Store

_SECONDS = 20.0


class Neighbour:
    """The rank after this one. Every rank makes one, at the same time; `gone` may be called by any thread."""

    def __init__(self, rank: int, world_size: int, store: Store) -> None:
        """Where the connection is refused (a firewall), nobody watches that rank."""
        self._next = (rank + 1) % world_size
        host = _own_address(store)
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        # its queue holds the connection of the rank before, which is never accepted
        self._listener = socket.create_server((host, 0), family=family)
        port = self._listener.getsockname()[1]
        store.set(f"neighbour/{rank}", f"{port} {host}")
        store.wait([f"neighbour/{self._next}"], timedelta(seconds=_SECONDS))
        there, _, place = store.get(f"neighbour/{self._next}").decode().partition(" ")
        self._connection: socket.socket | None = None
        with suppress(OSError):
            self._connection = socket.create_connection((place, int(there)), _SECONDS)
            self._connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            self._connection.setblocking(False)

    def gone(self) -> int | None:
        """Return the next rank, once, if its process has ended."""
        if (connection := self._connection) is None:
            return None
        try:
            connection.recv(1)
        except BlockingIOError:
            return None
        except OSError:
            pass
        self._connection = None
        connection.close()
        return self._next

    def close(self) -> None:
        """Leave the ring: from now on this process looks ended to the rank before."""
        self._listener.close()
        if self._connection is not None:
            self._connection.close()
            self._connection = None


def _own_address(store: Any) -> str:
    """Return this machine's address on the way to the machine that serves the store; local without one."""
    while hasattr(store, "underlying_store"):
        store = store.underlying_store
    with suppress(AttributeError, OSError):
        family, *_, server = socket.getaddrinfo(store.host, 9, type=socket.SOCK_DGRAM)[0]
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.connect(server)
            return str(probe.getsockname()[0])
    return "127.0.0.1"
