"""The command line with fake workers: `python driver.py sweep FILE ...`."""

import os
import sys
from pathlib import Path

from zbench.cli.main import main
from zbench.launch import executor

sys.path.insert(0, str(Path(__file__).parent))
import injected

executor.DEFAULT_TARGETS = executor.Targets(
    "fake_worker:run_rank", "fake_worker:run_reference", ("fake_worker",), machine="fake_worker:run_machine"
)


def quicken(pace: int) -> None:
    """Give lost workers up sooner than after the usual 45 seconds."""
    from zbench.tune.storage import DEFAULT_HEARTBEAT

    object.__setattr__(DEFAULT_HEARTBEAT, "pace", pace)
    object.__setattr__(DEFAULT_HEARTBEAT, "grace", 3 * pace)


if __name__ == "__main__":
    if injected.REFUSED in os.environ:
        injected.refuse(os.environ[injected.REFUSED])
    if injected.VARIABLE in os.environ:
        injected.install(os.environ[injected.VARIABLE])
    if injected.PACE in os.environ:
        quicken(int(os.environ[injected.PACE]))
    main()
