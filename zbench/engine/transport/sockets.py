"""Sockets between the ranks of one host, for the steps of a cross-memory collective."""

import os
import secrets
import socket
import struct
from collections.abc import Sequence
from contextlib import suppress

Message = tuple[int, int, int]
"""The number and the code of a collective call, and what is told in it."""
_MESSAGE = struct.Struct("qqq")
_HELLO = struct.Struct("qq")  # who connects, and for which channel


_CREDENTIALS = struct.Struct("iII")  # pid, uid, gid: `struct ucred` of unix(7)
_BACKLOG = 4096  # what strangers would have to fill to keep a rank from connecting


class PeerSockets:
    """A socket to every other rank. After one failure they are all closed: messages may be lost."""

    def __init__(self, rank: int, world_size: int) -> None:
        self.rank, self.world_size = rank, world_size
        self._peers: dict[int, socket.socket] = {}

    def join(self, rank: int, peer: socket.socket) -> None:
        """Use `peer` for another rank."""
        self._peers[rank] = peer

    def exchange(self, message: Message) -> list[Message]:
        """Return every rank's message; no rank returns before all have sent theirs. OSError if one
        is gone.
        """
        received = [message] * self.world_size
        try:
            for peer in self._peers.values():
                peer.send(_MESSAGE.pack(*message))
            for rank, peer in self._peers.items():
                if not (answer := peer.recv(_MESSAGE.size)):
                    raise ConnectionResetError(f"rank {rank} has gone in the middle of a collective")
                received[rank] = _MESSAGE.unpack(answer)
        except BaseException:
            self.close()
            raise
        return received

    def end(self) -> None:
        """Shut the sockets down, so that ranks that wait for this one get an error."""
        for peer in self._peers.values():
            with suppress(OSError):
                peer.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Disconnect; ranks that wait for this one get an error."""
        for peer in self._peers.values():
            peer.close()

    __del__ = close


class PeerListener:
    """Listens for the other ranks of this host; `name` is the address that they connect to.

    The address is in the abstract namespace, where any local user may connect. So both ends ask the kernel
    for the other's process and user (SO_PEERCRED); a stranger's connection is closed and not waited for.
    """

    def __init__(self, rank: int, world_size: int, timeout: float) -> None:
        self.channels = [PeerSockets(rank, world_size) for _ in range(2)]
        self.name = b"\0zbench-" + secrets.token_hex(16).encode()
        self._rank, self._timeout = rank, timeout
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._listener.bind(self.name)
        self._listener.listen(_BACKLOG)

    def connect(self, names: Sequence[bytes], pids: Sequence[int]) -> None:
        """Connect to every lower rank; OSError where that fails. names, pids: of every rank."""
        for rank, name in enumerate(names[: self._rank]):
            for number, channel in enumerate(self.channels):
                peer = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
                channel.join(rank, peer)
                peer.settimeout(self._timeout)
                peer.connect(name)
                if not _is_process(peer, pids[rank]):
                    raise ConnectionRefusedError(f"the socket of rank {rank} belongs to another process")
                peer.send(_HELLO.pack(self._rank, number))

    def accept(self, pids: Sequence[int]) -> None:
        """Accept the higher ranks, which have all connected; ignore strangers. pids: of every rank."""
        missing = {(rank, n) for rank in range(self._rank + 1, len(pids)) for n in range(len(self.channels))}
        while missing:
            peer, _ = self._listener.accept()
            if not any(_is_process(peer, pids[rank]) for rank, _ in missing):
                peer.close()
                continue
            peer.settimeout(self._timeout)
            rank, number = _HELLO.unpack(peer.recv(_HELLO.size))
            self.channels[number].join(rank, peer)
            missing.remove((rank, number))

    def close(self) -> None:
        """Stop listening."""
        self._listener.close()


def _is_process(peer: socket.socket, pid: int) -> bool:
    """Whether the other end of a local socket is this process, run by this user."""
    credentials = peer.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    found, user, _ = _CREDENTIALS.unpack(credentials)
    return bool(found == pid and user == os.geteuid())
