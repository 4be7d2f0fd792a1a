"""What a process starts ends with it, also when it is killed."""

import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from zbench.children import bound

STARTS = {
    "die_with_parent": """
from concurrent.futures import ProcessPoolExecutor
from zbench.children import die_with_parent
pool = ProcessPoolExecutor(2, initializer=die_with_parent, initargs=(os.getpid(),))
pids = set(pool.map(pid_of, range(40)))
""",
    "bound": """
from zbench.children import bound
pids = {subprocess.Popen(bound(["sleep", "1000"])).pid}
""",
    "watch_parent": """
command = "from zbench.children import *; import sys; watch_parent(int(sys.argv[1])); time.sleep(1000)"
pids = {subprocess.Popen([sys.executable, "-c", command, str(os.getpid())]).pid}
""",
}
PROGRAM = """
import os, subprocess, sys, time
def pid_of(_):
    time.sleep(0.01)
    return os.getpid()
if __name__ == "__main__":
    exec(sys.argv[1])
    print(*pids, flush=True)
    time.sleep(1000)
"""


@pytest.mark.parametrize("way", STARTS)
def test_children_end_when_their_parent_is_killed(tmp_path: Path, way: str) -> None:
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    with subprocess.Popen(
        [sys.executable, program, STARTS[way]], stdout=subprocess.PIPE, text=True
    ) as parent:
        assert parent.stdout is not None
        children = [psutil.Process(int(pid)) for pid in parent.stdout.readline().split()]
        assert children
        assert all(child.is_running() for child in children)
        parent.send_signal(signal.SIGKILL)
    _, alive = psutil.wait_procs(children, timeout=60)
    assert not alive


def test_a_bound_command_is_the_process_itself() -> None:
    done = subprocess.run(bound([sys.executable, "-c", "raise SystemExit(7)"]), check=False)
    assert done.returncode == 7
    with subprocess.Popen(bound(["sleep", "1000"])) as process:
        process.terminate()
        assert process.wait() == -signal.SIGTERM
