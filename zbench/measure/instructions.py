"""Instructions retired by this process, from the kernel's performance counter (`perf_event_open`, Linux)."""

import ctypes
import errno
import os
import platform
import struct
from collections.abc import Callable

_SYSCALL = {"x86_64": 298, "aarch64": 241}
_HARDWARE, _INSTRUCTIONS, _SIZE = 0, 1, 128
_INHERIT, _NO_KERNEL, _NO_HYPERVISOR = 1 << 1, 1 << 5, 1 << 6
_REASONS = {
    errno.ENOENT: "this machine, a virtual one perhaps, shows no performance-monitoring unit",
    errno.EOPNOTSUPP: "this machine shows no counter of instructions",
    errno.EACCES: "kernel.perf_event_paranoid forbids it; set it to 2 or less",
    errno.EPERM: "kernel.perf_event_paranoid or a container's seccomp profile forbids it",
    errno.ENOSYS: "this kernel has no perf_event_open",
}


def instruction_counter() -> Callable[[], int] | None:
    """Return a reader of this process's retired user instructions, None where the kernel shows none."""
    try:
        file = _open()
    except OSError:
        return None
    return lambda: int.from_bytes(os.read(file, 8), "little")


def instruction_problem() -> str | None:
    """Return why instructions cannot be counted here, in words; None where they can."""
    try:
        os.close(_open())
    except OSError as error:
        return _REASONS.get(error.errno or 0, f"perf_event_open: {error.strerror}")
    return None


def _open() -> int:
    """Return the counter's file descriptor; OSError with the kernel's reason."""
    number = _SYSCALL.get(platform.machine())
    if number is None or not os.path.exists("/proc/sys/kernel/perf_event_paranoid"):
        raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))
    attributes = bytearray(_SIZE)
    struct.pack_into("IIQ", attributes, 0, _HARDWARE, _SIZE, _INSTRUCTIONS)
    struct.pack_into("Q", attributes, 40, _INHERIT | _NO_KERNEL | _NO_HYPERVISOR)
    buffer = (ctypes.c_char * _SIZE).from_buffer(attributes)
    file = int(ctypes.CDLL(None, use_errno=True).syscall(number, buffer, 0, -1, -1, 0))
    if file < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return file
