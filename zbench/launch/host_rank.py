"""One rank of a trial over several hosts: `python -m zbench.launch.host_rank JOB.json` under torchrun."""

import importlib
import json
import os
import sys
import time
from pathlib import Path
from typing import Any

from zbench.launch.child import call
from zbench.worker.job import RankJob

_PEER_GRACE_SECONDS = 2.0


def main(path: str) -> int:
    """Run this process's rank of the job at `path`; return its exit status."""
    order = json.loads(Path(path).read_text())
    rank = int(os.environ["RANK"])
    code = call(order["target"], lambda: _placed(order, rank), (str(order["job"]["result_path"]), rank))
    if code:
        time.sleep(_PEER_GRACE_SECONDS)  # torchrun now ends the other ranks, which may know more of the cause
    return code


def _placed(order: dict[str, Any], rank: int) -> RankJob:
    """Import what the worker needs, and return the job of this process."""
    for module in order["modules"]:  # in this order: the memory counter must be there before torch
        importlib.import_module(module)
    place = {"rank": rank, "world_size": int(os.environ["WORLD_SIZE"]), "init_method": "env://"}
    place |= {"local_rank": int(os.environ["LOCAL_RANK"])}
    place |= {"local_world_size": int(os.environ["LOCAL_WORLD_SIZE"])}
    return RankJob(**{**order["job"], **place})


if __name__ == "__main__":
    status = main(sys.argv[1])
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)  # threads of torch's process groups can abort a process that unloads around them
