"""The other ranks of this host: their memory, read with Linux's `process_vm_readv`, and sockets to them.

Whether a rank may read another's memory is found by trying (`probe_peers`).
"""

import ctypes
import os
import secrets
import socket
import struct
import sys
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

import torch
import torch.distributed as dist
from torch import Tensor

from zbench.engine.protocols import Memory

_PR_SET_PTRACER = 0x59616D61
_BOOT = Path("/proc/sys/kernel/random/boot_id")
Message = tuple[int, int, int]
"""The number and the code of a collective call, and the value that each rank sends in it."""
_MESSAGE = struct.Struct("qqq")
_HELLO = struct.Struct("qq")  # who connects, and for which channel


class _Span(ctypes.Structure):
    _fields_ = (("base", ctypes.c_void_p), ("length", ctypes.c_size_t))


@cache
def _libc() -> ctypes.CDLL:
    libc = ctypes.CDLL(None, use_errno=True)
    libc.process_vm_readv.restype = ctypes.c_ssize_t
    span = (ctypes.c_void_p, ctypes.c_ulong)
    libc.process_vm_readv.argtypes = (ctypes.c_int, *span, *span, ctypes.c_ulong)
    return libc


def read_memory(pid: int, address: int, into: Tensor) -> None:
    """Fill `into` (contiguous, on the CPU) from `address` on of another process; OSError if it may not."""
    done = 0
    libc = _libc()
    while done < into.nbytes:
        local, remote = (_Span(start + done, into.nbytes - done) for start in (into.data_ptr(), address))
        count = libc.process_vm_readv(pid, ctypes.byref(local), 1, ctypes.byref(remote), 1, 0)
        if count <= 0:
            error = ctypes.get_errno()
            raise OSError(error, f"cannot read the memory of process {pid}: {os.strerror(error)}")
        done += count


@dataclass(frozen=True, slots=True)
class MemoryProbe:
    """Random bytes in the memory of a process, with which other processes test whether they can read it."""

    host: str
    pid: int
    address: int
    value: bytes

    def readable(self) -> bool:
        """Return whether this process reads the right bytes; in another container the pid may be another
        process.
        """
        value = torch.zeros(len(self.value), dtype=torch.uint8, device="cpu")
        try:
            if self.host == _host():
                read_memory(self.pid, self.address, value)
        except (OSError, AttributeError):
            return False
        return bytes(value.tolist()) == self.value


def publish_probe(memory: Memory | None) -> tuple[MemoryProbe, Tensor]:
    """Return a probe of what this process keeps in `memory` (None: anywhere on the CPU); it is valid as long
    as the tensor exists.
    """
    _allow_siblings_to_read()
    value = secrets.token_bytes(16)
    tensor = torch.tensor(list(value), dtype=torch.uint8, device="cpu")
    if memory is not None:
        tensor = memory.zeros(len(value), torch.uint8).copy_(tensor)
    return MemoryProbe(_host(), os.getpid(), tensor.data_ptr(), value), tensor


def _host() -> str:
    """Return what only processes under one running kernel share."""
    return _BOOT.read_text() if sys.platform == "linux" and _BOOT.exists() else secrets.token_hex()


def _allow_siblings_to_read() -> None:
    """Allow descendants of this process's parent (the job's other ranks) what Yama reserves for ancestors."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PTRACER, ctypes.c_ulong(os.getppid()), 0, 0, 0)


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
    """Listens for the other ranks of this host; `name` is the file that they connect to, in a folder that
    only this user may enter.
    """

    def __init__(self, rank: int, world_size: int, timeout: float) -> None:
        self.channels = [PeerSockets(rank, world_size) for _ in range(2)]
        self._folder = TemporaryDirectory(prefix="zbench-")
        self.name = f"{self._folder.name}/socket"
        self._rank, self._timeout = rank, timeout
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._listener.bind(self.name)
        self._listener.listen(2 * world_size)

    def connect(self, names: Sequence[str]) -> None:
        """Connect to every lower rank; OSError where that fails. names: of every rank."""
        for rank, name in enumerate(names[: self._rank]):
            for number, channel in enumerate(self.channels):
                peer = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
                channel.join(rank, peer)
                peer.settimeout(self._timeout)
                peer.connect(name)
                peer.send(_HELLO.pack(self._rank, number))

    def accept(self, world_size: int) -> None:
        """Accept the higher ranks, which have all connected."""
        for _ in range((world_size - self._rank - 1) * len(self.channels)):
            peer, _ = self._listener.accept()
            peer.settimeout(self._timeout)
            rank, number = _HELLO.unpack(peer.recv(_HELLO.size))
            self.channels[number].join(rank, peer)

    def close(self) -> None:
        """Stop listening."""
        self._listener.close()
        self._folder.cleanup()


@dataclass(frozen=True, slots=True)
class PeerProcesses:
    """The process id of every rank, and two sets of sockets between them."""

    pids: list[int]
    channels: list[PeerSockets]


def probe_peers(group: dist.ProcessGroup, memory: Memory | None = None) -> PeerProcesses | None:
    """Return the peers if all ranks of `group` can read what the others keep in `memory` (None: anywhere on
    the CPU), else None; the same on all ranks. A driver may refuse to have page-locked memory read.
    """
    rank = dist.get_rank(group)
    world = dist.get_world_size(group)
    timeout = group._get_backend(torch.device("cpu")).options._timeout.total_seconds()
    probe, tensor = publish_probe(memory)
    listener = None
    with suppress(OSError):  # the path of TMPDIR may be too long for a socket
        listener = PeerListener(rank, world, timeout) if sys.platform == "linux" else None
    contact = (probe, "" if listener is None else listener.name)
    contacts = [contact] * world
    dist.all_gather_object(contacts, contact, group=group)
    verdicts = [False] * world
    dist.all_gather_object(verdicts, listener is not None and can_read_all(listener, contacts), group=group)
    del tensor
    if listener is None:
        return None
    peers = None
    if all(verdicts):
        listener.accept(world)
        peers = PeerProcesses([probe.pid for probe, _ in contacts], listener.channels)
    listener.close()
    return peers


def can_read_all(listener: PeerListener, contacts: Sequence[tuple[MemoryProbe, str]]) -> bool:
    """Connect to all ranks whose memory this process can read; say whether that is every one."""
    with suppress(OSError):
        if all(probe.readable() for probe, _ in contacts):
            listener.connect([name for _, name in contacts])
            return True
    return False
