"""The shipped sweeps of other engines: `peers` and `deepspeed_regressions`."""

import importlib.util
import json
from pathlib import Path

import pytest

from tests.cli.conftest import run
from zbench.errors import SpecError
from zbench.spec import environments, peers
from zbench.spec.expand import expand
from zbench.spec.load import load_sweep
from zbench.spec.peers import PEERS

SWEEPS = Path(__file__).parents[2] / "sweeps"
ROWS = {"builtin": 7, "ddp": 1, "zero_redundancy": 1, "fsdp2": 1, "deepspeed": 7}


@pytest.mark.parametrize("installed", [True, False])
def test_the_peers_table_has_every_engine(installed: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    why = None if installed else "deepspeed is not installed; run `pip install deepspeed`"
    monkeypatch.setattr(peers, "missing_package", lambda name: why if name == "deepspeed" else None)
    expansion = expand(load_sweep(SWEEPS / "peers.yaml", environ={}))
    assert set(ROWS) == {"builtin", *PEERS}
    engines = [trial.engine.engine for trial in expansion.trials]
    assert {name: engines.count(name) for name in ROWS} == ROWS | ({} if installed else {"deepspeed": 0})
    assert [point.reason for point in expansion.invalid] == ([] if installed else [why] * ROWS["deepspeed"])
    assert expansion.unused == []


def test_the_regressions_race_the_versions_that_are_installed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(SpecError, match=r"no environment is named 'deepspeed-0\.18\.2'"):
        load_sweep(SWEEPS / "deepspeed_regressions.yaml", environ={"ZBENCH_ENVIRONMENTS": str(tmp_path)})
    for version in ("0.18.2", "0.19.8"):
        (tmp_path / f"deepspeed-{version}" / "bin").mkdir(parents=True)
        (tmp_path / f"deepspeed-{version}" / "bin" / "python").touch()
    has = dict.fromkeys(("torch", "deepspeed", *environments.WORKER_NEEDS), "9")
    environment = environments.Environment(tmp_path, (3, 11, 0), "cpython-311", has, frozenset())
    monkeypatch.setattr(environments, "describe", lambda *_: environment)
    expansion = expand(
        load_sweep(SWEEPS / "deepspeed_regressions.yaml", environ={"ZBENCH_ENVIRONMENTS": str(tmp_path)})
    )
    assert len(expansion.trials) == len(expansion.invalid) == 24
    accumulated = {
        (trial.engine.gradient_accumulation_steps, trial.workload.backwards_per_step)
        for trial in expansion.trials
    }
    assert accumulated == {(4, 1), (1, 4)}, "four micro-batches a step, counted or marked"


@pytest.mark.soak
@pytest.mark.timeout(1200)
def test_the_peers_table_in_one_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    tiny = ["steps=2", "warmup_steps=1", "sequence_length=16", "workload.options={layers: 1, width: 16}"]
    words = [word for setting in tiny for word in ("--set", setting)]
    code, out, err = run(capsys, "sweep", "peers", "--repeats", "1", "-q", "--json", *words)
    assert code == 0, err
    records = json.loads(out)["trials"]
    assert len(records) == sum(ROWS.values())
    for record in records:
        has = record["axes"]["engine"] != "deepspeed" or importlib.util.find_spec("deepspeed") is not None
        assert record["outcome"] == ("ok" if has else "invalid"), record["error"]
        if has:
            assert record["correctness"]["verdict"] in ("identical", "equivalent"), record["axes"]
