"""A transformers model trains for long on the engine's most involved paths: stage 0's bits at the end."""

import os
from pathlib import Path
from typing import Any

import pytest

from tests.worker.conftest import RunTrial, trial
from zbench.launch.trial import TrialRunner
from zbench.verify.trajectory import load_reference

STEPS = int(os.environ.get("ZBENCH_SOAK_STEPS", "200"))
MODEL: dict[str, Any] = {  # 20 million parameters
    "model": "hf:gpt2",
    "options": {"n_layer": 6, "n_embd": 384, "n_head": 6, "vocab_size": 24_000, "n_positions": 32},
    "sequence_length": 16,
    "micro_batch_size": 1,
}
SPECULATIVE = {"offload_optimizer": "cpu", "offload_schedule": "speculative", "reduce_bucket_size": 500_000}


@pytest.mark.soak
@pytest.mark.timeout(7200)
def test_compiled_and_speculative_training_has_stage_0s_bits_and_finite_losses(
    run_trial: RunTrial, runner: TrialRunner
) -> None:
    pytest.importorskip("transformers")
    paths = [{"zero_stage": 0}, {"zero_stage": 1, "compile": "aot_eager"}]
    paths += [{"zero_stage": stage, **SPECULATIVE} for stage in (2, 3)]
    trials = [
        trial(path, workload=MODEL, run={"steps": STEPS, "timeout": "7200s"}, verify="reference")
        for path in paths
    ]
    for one in trials:
        record = run_trial(one)
        assert record.error is None
        assert record.correctness.verdict == "identical", one.engine
    reference = runner.scheduler.references.of(trials[0])
    assert isinstance(reference, Path)
    assert load_reference(reference).plain.losses.isfinite().all()
