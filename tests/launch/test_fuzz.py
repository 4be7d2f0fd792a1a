"""Whatever is in the files that are read: an answer or one clear error, never another exception."""

import contextlib
import json
from typing import Any

from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from zbench.errors import ZbenchError
from zbench.launch.executor import Attempt
from zbench.launch.implied import ImpliedOom
from zbench.launch.progress import ProgressTail
from zbench.launch.trial import TrialRunner
from zbench.record import lines
from zbench.record.summary import summarize
from zbench.spec.deepspeed import from_deepspeed
from zbench.spec.load import sweep_from_mapping
from zbench.worker.job import error_path, first_failure

from .conftest import make_trial
from .fake_worker import result_of
from .mock_executor import MockExecutor

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)
FUZZ = settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


def replaced(document: Any, draw: st.DataObject) -> Any:
    """Return a document with one value, at a drawn place, replaced by a drawn one."""
    if isinstance(document, dict) and document and draw.draw(st.booleans()):
        key = draw.draw(st.sampled_from(sorted(document)))
        return document | {key: replaced(document[key], draw)}
    return draw.draw(VALUES)


def record() -> dict[str, Any]:
    """Return the JSON values of a record that is ok."""
    trial = make_trial()
    identity = {"run_id": "run", "trial_id": trial.trial_id, "repeat": 0, "schema_version": 1}
    what = {"axes": trial.axes, "config": trial.config()}
    return lines.jsonable(lines.decode(identity | what | result_of({}, 0, has_reference=True)))


@FUZZ
@given(st.binary(max_size=200))
def test_any_bytes_as_a_record_line(data: bytes) -> None:
    with contextlib.suppress(ZbenchError):
        lines.decode_line(data)


@FUZZ
@given(st.data())
def test_a_record_with_any_value_anywhere(data: st.DataObject) -> None:
    try:
        found = lines.decode(replaced(RECORD, data))
    except ZbenchError:
        return
    (summary,) = summarize([found])
    ImpliedOom().observe(found)
    for name in ("tokens_per_s", "peak_device_bytes", "verdict"):
        summary.metric(name)


@FUZZ
@given(st.data())
def test_any_result_of_a_worker_becomes_a_record(tmp_path, data: st.DataObject) -> None:
    result = replaced(result_of({}, 0, has_reference=False), data)

    class Reporting(MockExecutor):
        def run(self, task: Any, watch: Any = None) -> Attempt:
            return Attempt("ok", result=result if isinstance(result, dict) else {})

    trial = make_trial()
    trial = trial.model_copy(update={"verify": trial.verify.model_copy(update={"mode": "off"})})
    found = TrialRunner(Reporting(), tmp_path).run(trial)
    assert found.trial_id == trial.trial_id
    lines.encode(found)


@FUZZ
@given(VALUES)
def test_any_error_file_and_progress_line(tmp_path, value: Any) -> None:
    error_path(str(tmp_path / "result"), 0).write_text(json.dumps(value))
    first_failure(str(tmp_path / "result"), 1)
    (tmp_path / "progress").write_text(json.dumps(value) + "\n")
    assert all(isinstance(line["step"], int) for line in ProgressTail(tmp_path / "progress").new_lines())


@FUZZ
@given(st.data())
def test_a_sweep_with_any_value_anywhere(data: st.DataObject) -> None:
    sweep = {
        "name": "fuzz",
        "workload": {"model": "mlp", "options": {"hidden": 8}},
        "run": {"world_size": 2, "steps": 3},
        "engine": {"zero_stage": 1, "optimizer": {"lr": 0.1}, "param_groups": {"*": {"lr": 0.1}}},
        "axes": {"zero_stage": [0, 1]},
        "exclude": [],
        "search": {"method": "grid"},
        "objective": {"maximize": "tokens_per_s"},
    }
    document = replaced(sweep, data)
    assume(isinstance(document, dict))  # the file's reader refuses everything else
    with contextlib.suppress(ZbenchError):
        sweep_from_mapping(document, environ={})


@FUZZ
@given(st.data())
def test_a_deepspeed_configuration_with_any_value_anywhere(data: st.DataObject) -> None:
    document = {
        "train_micro_batch_size_per_gpu": 2,
        "gradient_clipping": 1.0,
        "bf16": {"enabled": True},
        "optimizer": {"type": "AdamW", "params": {"lr": 1e-3, "betas": [0.9, 0.999]}},
        "zero_optimization": {"stage": 2, "offload_optimizer": {"device": "cpu"}, "reduce_bucket_size": 5e8},
    }
    with contextlib.suppress(ZbenchError):
        from_deepspeed(replaced(document, data))


RECORD = record()
