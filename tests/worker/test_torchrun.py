"""The same trial under torchrun, as it runs across machines."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.worker.conftest import ROOT, trial
from zbench.worker.__main__ import main


def test_a_trial_runs_under_torchrun_and_computes_its_reference(tmp_path: Path) -> None:
    (tmp_path / "trial.json").write_text(json.dumps(trial({"zero_stage": 2}).config()))
    torchrun = "torch.distributed.run --nproc-per-node 2 --rdzv-backend c10d --rdzv-endpoint localhost:0"
    command = [sys.executable, "-m", *torchrun.split(), "-m", "zbench.worker", str(tmp_path / "trial.json")]
    command += ["--result", str(tmp_path / "result.json")]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, env=environment, check=False)
    assert done.returncode == 0, done.stderr
    result = json.loads((tmp_path / "result.json").read_text())
    assert (result["outcome"], result["correctness"]["verdict"]) == ("ok", "identical")
    assert result["memory"]["exact"], result["warnings"]


@pytest.mark.parametrize(
    ("content", "world_size", "message"),
    [
        (None, None, "cannot read"),
        ("{", None, "holds no trial"),
        ("{}", None, "holds no trial"),
        ("valid", None, "start this with torchrun"),
        ("valid", "3", "torchrun started 3 ranks, but run.world_size is 2"),
    ],
)
def test_bad_input_exits_with_2_and_one_line(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    content: str | None,
    world_size: str | None,
    message: str,
) -> None:
    path = tmp_path / "trial.json"
    if content is not None:
        path.write_text(json.dumps(trial().config()) if content == "valid" else content)
    if world_size is not None:
        sizes = {"WORLD_SIZE": world_size, "LOCAL_WORLD_SIZE": world_size, "RANK": "0", "LOCAL_RANK": "0"}
        for name, value in (sizes | {"MASTER_ADDR": "localhost", "MASTER_PORT": "1"}).items():
            monkeypatch.setenv(name, value)
    with pytest.raises(SystemExit) as ended:
        main([str(path), "--result", str(tmp_path / "result.json")])
    assert ended.value.code == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1
