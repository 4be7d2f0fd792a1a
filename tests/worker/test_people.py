"""Training scripts as people write them: no healthy variant is accused, and faults are named."""

from pathlib import Path

import pytest

from tests.worker.people import VARIANTS
from zbench.job.jobs import ReferenceJob
from zbench.spec.expand import expand
from zbench.spec.load import sweep_from_mapping
from zbench.verify.weights import judge_weights, load_base
from zbench.worker.base_runs import run_base
from zbench.worker.script import run_once

SCRIPT = Path(__file__).with_name("people.py")


@pytest.mark.check
@pytest.mark.timeout(900)
@pytest.mark.parametrize("family", VARIANTS)
def test_healthy_scripts_are_not_accused_and_faults_are_named(family: str, tmp_path: Path) -> None:
    healthy, faulty = VARIANTS[family]
    command = f"python {SCRIPT} --family {family} --do {{do}} --steps {{steps}} --out {{output}}"
    workload = {
        "command": command,
        "parameters": {"do": "base"},
        "step_times": {"jsonl": "{output}/steps.jsonl"},
        "checkpoint": "{output}/model.pt",
    }
    verify = {"same_training": ["do"]} | ({"precise": {"do": "precise"}} if family == "bfloat16" else {})
    document = {
        "workload": workload,
        "run": {"warmup_steps": 1, "steps": 9, "threads_per_rank": 1},
        "verify": verify,
    }
    trials = expand(sweep_from_mapping(document | {"axes": {"do": [*healthy, *faulty]}}, environ={})).trials
    base = tmp_path / "base.safetensors"
    run_base(ReferenceJob({}, "", str(tmp_path), "", str(base)), trials[0])
    verdicts = {}
    for trial in trials:
        outcome = run_once(trial, tmp_path, tmp_path / str(trial.trial_id), lambda *_: None)
        judgement = judge_weights(outcome.weights(), load_base(base))
        verdicts[str(trial.axes["do"])] = judgement.correctness.verdict
    assert all(verdicts[name] in ("identical", "equivalent", "unchecked") for name in healthy), verdicts
    assert all(verdicts[name] in ("drifted", "wrong") for name in faulty), verdicts
