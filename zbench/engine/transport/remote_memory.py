"""Reads another process's memory with Linux's `process_vm_readv`, and probes whether it may."""

import ctypes
import os
import secrets
import sys
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import torch
from torch import Tensor

_PR_SET_PTRACER = 0x59616D61
_BOOT = Path("/proc/sys/kernel/random/boot_id")


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
    done, libc = 0, _libc()
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
        found = torch.zeros(len(self.value), dtype=torch.uint8)
        try:
            if self.host == _host():
                read_memory(self.pid, self.address, found)
        except (OSError, AttributeError):
            return False
        return bytes(found.tolist()) == self.value


def publish_probe() -> tuple[MemoryProbe, Tensor]:
    """Return a probe of this process's memory; it is valid as long as the tensor exists."""
    _allow_siblings_to_read()
    value = secrets.token_bytes(16)
    kept = torch.tensor(list(value), dtype=torch.uint8)
    return MemoryProbe(_host(), os.getpid(), kept.data_ptr(), value), kept


def _host() -> str:
    """Return what only processes under one running kernel share."""
    return _BOOT.read_text() if sys.platform == "linux" and _BOOT.exists() else secrets.token_hex()


def _allow_siblings_to_read() -> None:
    """Allow descendants of this process's parent (the job's other ranks) what Yama reserves for ancestors."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PTRACER, ctypes.c_ulong(os.getppid()), 0, 0, 0)
