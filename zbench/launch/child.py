"""What a forked process does: join its process group, redirect its output, call its target, exit."""

import ctypes
import faulthandler
import importlib
import os
import pickle
import signal
import sys
import traceback
from collections.abc import Callable
from typing import Any, NoReturn

from zbench.launch.messages import RankStart
from zbench.worker.failure import report

STACKS_SIGNAL = signal.SIGUSR1
_PR_SET_PDEATHSIG = 1


def die_with_parent(parent: int) -> None:
    """Have the kernel kill this process when its parent (thread) ends; end now if it has ended already."""
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:
        os._exit(1)


def become_rank(start: RankStart, target: str, group: int, server: int) -> NoReturn:
    """Run `target` in this forked process and exit: 0 if it returned, 1 if it raised."""
    code = 1
    try:
        die_with_parent(server)
        os.setpgid(0, group)
        _redirect(start.log)
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGCHLD):
            signal.signal(number, signal.SIG_DFL)
        signal.set_wakeup_fd(-1)
        faulthandler.enable()
        faulthandler.register(STACKS_SIGNAL, all_threads=True)
        if start.cpus is not None:
            os.sched_setaffinity(0, start.cpus)
        code = call(target, lambda: pickle.loads(start.job), start.error)
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def resolve(target: str) -> Callable[[Any], None]:
    """Return the function that `module:function` names."""
    module, name = target.split(":")
    function: Callable[[Any], None] = getattr(importlib.import_module(module), name)
    return function


def call(target: str, job: Callable[[], object], error: tuple[str, int | str]) -> int:
    """Call `target` with its job and return an exit status; `error` says where a failure is reported."""
    try:
        try:
            resolve(target)(job())
        except Exception as escaped:
            traceback.print_exc()
            report(escaped, *error)
            return 1
    except SystemExit as request:
        return request.code if isinstance(request.code, int) else int(request.code is not None)
    return 0


def _redirect(log: str) -> None:
    output = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    empty = os.open(os.devnull, os.O_RDONLY)
    os.dup2(empty, 0)
    os.dup2(output, 1)
    os.dup2(output, 2)
    os.close(output)
    os.close(empty)
