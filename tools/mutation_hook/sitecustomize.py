"""Gives Python processes that a test starts what `tools/mutate.py` gives the test: a fault, or its tracer."""

import os
import sys
from pathlib import Path

if os.environ.get("ZBENCH_MUTANT") or os.environ.get("ZBENCH_CALLS"):
    sys.path.append(str(Path(__file__).parents[1]))
if os.environ.get("ZBENCH_MUTANT"):
    from mutants import install

    path, _, index = os.environ["ZBENCH_MUTANT"].rpartition(":")
    install(path, int(index))
if os.environ.get("ZBENCH_CALLS"):
    from tracer import Tracer

    Tracer(Path(os.environ["ZBENCH_CALLS"])).start()
