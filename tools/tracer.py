"""Notes which functions of zbench a test calls: in its own process, its forks and processes it starts."""

import contextlib
import mmap
import os
import sys
import threading
from pathlib import Path
from types import CodeType, FrameType

ROOT = Path(__file__).resolve().parents[1]
VARIABLE = "ZBENCH_CALLS"
PACKAGE = str(ROOT / "zbench") + os.sep


class Tracer:
    """Appends the names of the functions of zbench that this process calls, each once per test."""

    def __init__(self, folder: Path) -> None:
        self._names = os.open(folder / "names", os.O_APPEND | os.O_WRONLY | os.O_CREAT)
        test = os.open(folder / "test", os.O_RDWR)
        self.test = mmap.mmap(test, 1)
        self._number = -1
        self._seen = dict[int, CodeType]()  # by identity: a compiler's code may have no hash

    def start(self) -> None:
        """Trace this thread, all that it starts, and forks."""
        threading.settrace(self._call)
        sys.settrace(self._call)

    def stop(self) -> None:
        """Trace no more here."""
        sys.settrace(None)
        threading.settrace(None)  # type: ignore[arg-type]

    def _call(self, frame: FrameType, event: str, argument: object) -> None:
        code = frame.f_code
        if self.test[0] != self._number:
            self._number = self.test[0]
            self._seen.clear()
        if id(code) in self._seen:
            return
        self._seen[id(code)] = code
        if code.co_filename.startswith(PACKAGE):
            path = Path(code.co_filename).relative_to(ROOT)
            name = code.co_qualname.split(".<locals>")[0]
            with contextlib.suppress(OSError):  # a test may forbid this process to write
                os.write(self._names, f"{path}:{name}\n".encode())
