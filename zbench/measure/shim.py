"""Loads the library that counts torch's CPU allocations. No torch here: it must be loaded before torch is.

`load()` is called when this module is imported. So `import zbench.measure.shim` before the first `import
torch` of a process (and of a fork server) is all that exact memory figures need. `zbench.measure.memory`
tests it.
"""

import ctypes
import sys
import sysconfig
from pathlib import Path
from typing import Protocol, cast

import zbench

_NAME = "_memory_shim.so"


class Shim(Protocol):
    """Counters of the bytes that torch's CPU allocator has handed out and not taken back."""

    def zbench_memory_live_bytes(self) -> int: ...
    def zbench_memory_peak_bytes(self) -> int: ...
    def zbench_memory_allocations(self) -> int: ...
    def zbench_memory_reset_peak(self) -> None: ...


def library_path() -> Path | None:
    """Return where a normal, an editable or an in-tree installation keeps the library; None if not built."""
    places = [Path(place) for place in zbench.__path__]
    places.append(Path(sysconfig.get_path("platlib")) / "zbench")
    return next((place / _NAME for place in places if (place / _NAME).is_file()), None)


def load() -> tuple[Shim | None, str | None]:
    """Return the loaded library, or None and why it is not there."""
    if "torch" in sys.modules:
        return None, "torch was imported before zbench.measure.shim"
    path = library_path()
    if path is None:
        return None, f"{_NAME} was not built"
    try:
        library = ctypes.CDLL(str(path), mode=ctypes.RTLD_GLOBAL)
    except OSError as error:
        return None, f"cannot load {path.name}: {error}"
    for name in ("zbench_memory_live_bytes", "zbench_memory_peak_bytes", "zbench_memory_allocations"):
        getattr(library, name).restype = ctypes.c_int64
        getattr(library, name).argtypes = []
    library.zbench_memory_reset_peak.restype = None
    return cast(Shim, library), None


SHIM, WHY_NOT = load()
