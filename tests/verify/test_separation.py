"""The thresholds 4 and 100 hold at depth and in bfloat16: honest rounding below, faults above.

Other engines and real processes are tried in tests/worker; here runs differ in what the reference itself is
given.
"""

import dataclasses
import json

import pytest

from tests.verify.runs import GPT, MLP, reference, reversed_samples, task
from zbench.record.record import Correctness
from zbench.verify.plain_training import PlainRun
from zbench.verify.trajectory import Reference, Trajectory
from zbench.verify.verdict import judge

DEEP = {**GPT, "options": {"layers": 8, "width": 32, "heads": 4}}
CASES = [("float32", MLP), ("float32", GPT), ("float32", DEEP), ("bfloat16", GPT), ("bfloat16", DEEP)]


Key = tuple[str, str, int]
KNOWN: dict[Key, Reference] = {}
"""References by (engine, workload, seed): several tests hold other runs against the same."""


def judged(of: PlainRun, other: PlainRun, key: Key) -> Correctness:
    """Return the verdict on a run of `other`, by the reference of `of`, which `key` names."""
    observed: Trajectory = reference(other, truth=False).plain
    if key not in KNOWN:
        KNOWN[key] = reference(of)
    return judge(observed, KNOWN[key]).correctness


def key_of(of: PlainRun, workload: dict[str, object], seed: int = 0) -> Key:
    """Return what tells the reference of a task from others."""
    return of.spec.model_dump_json(), json.dumps(workload), seed


@pytest.mark.parametrize(("dtype", "workload"), CASES)
@pytest.mark.parametrize("seed", [0, 1])
def test_samples_in_another_order_are_equivalent(dtype: str, workload: dict[str, object], seed: int) -> None:
    of = task(workload, dtype=dtype, seed=seed)
    found = judged(of, reversed_samples(of), key_of(of, workload, seed))
    assert found.verdict == "equivalent"
    assert found.error_ratio is not None
    assert found.error_ratio > 0.2


@pytest.mark.parametrize(("dtype", "workload"), CASES)
def test_a_dropped_micro_batch_is_not(dtype: str, workload: dict[str, object]) -> None:
    of = task(workload, dtype=dtype, gradient_accumulation_steps=2)
    one = dataclasses.replace(of.accumulation, backwards=1)
    dropping = dataclasses.replace(of, accumulation=one)
    found = judged(of, dropping, key_of(of, workload))
    assert found.verdict == ("wrong" if dtype == "float32" else found.verdict)
    assert found.verdict in ("drifted", "wrong")
    assert found.first_differing_step == 1


@pytest.mark.parametrize("workload", [MLP, GPT, DEEP])
def test_a_forgotten_weight_decay_is_seen_in_float32(workload: dict[str, object]) -> None:
    of = task(workload)
    found = judged(of, task(workload, optimizer={"weight_decay": 0.0}), key_of(of, workload))
    assert found.verdict == "wrong"


@pytest.mark.parametrize(("dtype", "workload"), CASES)
def test_a_doubled_learning_rate_is_seen_in_every_dtype(dtype: str, workload: dict[str, object]) -> None:
    of, other = task(workload, dtype=dtype), task(workload, dtype=dtype, optimizer={"lr": 2e-3})
    found = judged(of, other, key_of(of, workload))
    assert found.verdict in ("drifted", "wrong")
