"""Gives the processes that a test starts the fault that `tools/mutate.py` is measuring."""

import os
import sys
from pathlib import Path

if os.environ.get("ZBENCH_MUTANT"):
    sys.path.append(str(Path(__file__).parents[1]))
    from mutants import install

    path, _, index = os.environ["ZBENCH_MUTANT"].rpartition(":")
    install(path, int(index))
