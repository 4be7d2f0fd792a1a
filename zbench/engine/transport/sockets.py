"""Sockets between the ranks of one host, for the steps of a cross-memory collective."""

import secrets
import socket
import struct
from collections.abc import Sequence
from contextlib import suppress

Message = tuple[int, int, int]
"""The number and the code of a collective call, and what is told in it."""
_MESSAGE = struct.Struct("qqq")
_HELLO = struct.Struct("qq")  # who connects, and for which channel


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
    """Listens for the other ranks of this host; `name` is the address that they connect to."""

    def __init__(self, rank: int, world_size: int, timeout: float) -> None:
        self.channels = [PeerSockets(rank, world_size) for _ in range(2)]
        self.name = b"\0zbench-" + secrets.token_hex(16).encode()
        self._rank, self._timeout = rank, timeout
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._listener.bind(self.name)
        self._listener.listen(len(self.channels) * world_size)

    def connect(self, names: Sequence[bytes]) -> None:
        """Connect to every lower rank; OSError where that fails."""
        for rank, name in enumerate(names[: self._rank]):
            for number, channel in enumerate(self.channels):
                peer = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
                channel.join(rank, peer)
                peer.settimeout(self._timeout)
                peer.connect(name)
                peer.send(_HELLO.pack(self._rank, number))

    def accept(self, count: int) -> None:
        """Accept the `count` higher ranks, which have all connected."""
        for _ in range(count * len(self.channels)):
            peer, _ = self._listener.accept()
            peer.settimeout(self._timeout)
            rank, number = _HELLO.unpack(peer.recv(_HELLO.size))
            self.channels[number].join(rank, peer)

    def close(self) -> None:
        """Stop listening."""
        self._listener.close()
