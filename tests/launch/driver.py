"""The command line with fake workers: `python driver.py sweep FILE ...`."""

import os
import sys
from pathlib import Path

from zbench.cli.main import main
from zbench.launch import jobs

sys.path.insert(0, str(Path(__file__).parent))
import injected

jobs.DEFAULT_TARGETS = jobs.Targets("fake_worker:run_rank", "fake_worker:run_reference", ("fake_worker",))

if __name__ == "__main__":
    if injected.VARIABLE in os.environ:
        injected.install(os.environ[injected.VARIABLE])
    main()
