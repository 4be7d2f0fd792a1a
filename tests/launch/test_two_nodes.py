"""One trial on two machines under torchrun, a rank on each: the same verdict; the bytes go by the cable."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.launch.nodes import Node, two_nodes, why_not
from zbench.spec.trial import TrialSpec

ROOT = Path(__file__).parents[2]
UNABLE = why_not()
TRIAL: dict[str, Any] = {
    "workload": {"model": "mlp", "options": {"hidden": 64}, "sequence_length": 32, "micro_batch_size": 4},
    "run": {"world_size": 2, "device": "cpu", "warmup_steps": 1, "steps": 3, "threads_per_rank": 1},
    "verify": {"mode": "full"},
}


def start(node: Node, master: Node, folder: Path) -> subprocess.Popen[str]:
    """Start one node's torchrun with one rank."""
    torchrun = (sys.executable, "-m", "torch.distributed.run", "--nnodes", "2", "--nproc-per-node", "1")
    meeting = ("--rdzv-backend", "c10d", "--rdzv-endpoint", f"{master.address}:29400", "--rdzv-id", "zbench")
    unresolved = ("--rdzv-conf", f"is_host={int(node == master)}")  # no name service knows these hosts
    trial = ("-m", "zbench.worker", str(folder / "trial.json"), "--result", str(folder / "result.json"))
    return subprocess.Popen(
        node.command(*torchrun, *meeting, *unresolved, "--local-addr", node.address, *trial),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        cwd=ROOT,
        env=os.environ | {"OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": node.interface},
    )


@pytest.mark.skipif(UNABLE is not None, reason=str(UNABLE))
def test_a_trial_on_two_nodes_computes_its_reference(tmp_path: Path) -> None:
    engine = {"zero_stage": 3, "param_persistence_threshold": 0}
    spec = TrialSpec.model_validate(TRIAL | {"engine": engine})
    (tmp_path / "trial.json").write_text(json.dumps(spec.config()))
    with two_nodes() as nodes:
        running = [start(node, nodes[0], tmp_path) for node in nodes]
        try:
            said = [process.communicate(timeout=200)[0] for process in running]
        finally:
            for process in running:
                process.kill()
        received = [node.received() for node in nodes]
    assert [process.returncode for process in running] == [0, 0], "\n".join(said)
    result = json.loads((tmp_path / "result.json").read_text())
    assert (result["outcome"], result["correctness"]["verdict"]) == ("ok", "identical")
    # A rank sends half of what it reduces, for 4 steps, and the other receives it.
    sent = result["traffic"]["reduce_scatter"]["bytes"] // 2 * 4
    assert min(received) > sent
