"""Whatever is in the files that are read: an answer or one clear error, never another exception."""

import contextlib
import json
import os
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from tests.world import World
from zbench.errors import ZbenchError
from zbench.launch.executor import Attempt
from zbench.launch.trial import TrialRunner
from zbench.record import lines
from zbench.record.summary import summarize
from zbench.spec.foreign.deepspeed import from_deepspeed
from zbench.spec.load import load_sweep, recorded_objective, sweep_from_mapping

from .conftest import make_trial
from .fake_worker import result_of

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)
FEW = 100
MANY = int(os.environ.get("ZBENCH_FUZZ", "5000"))
MIB = 1 << 20
SWEEP = {
    "name": "fuzz",
    "workload": {"model": "mlp", "options": {"hidden": 8}},
    "run": {"world_size": 2, "steps": 3},
    "engine": {"zero_stage": 1, "optimizer": {"lr": 0.1}, "param_groups": {"*": {"lr": 0.1}}},
    "axes": {"zero_stage": [0, 1]},
    "exclude": [],
    "search": {"method": "grid"},
    "objective": {"maximize": "tokens_per_s"},
}
DEEPSPEED = {
    "train_micro_batch_size_per_gpu": 2,
    "gradient_clipping": 1.0,
    "bf16": {"enabled": True},
    "optimizer": {"type": "AdamW", "params": {"lr": 1e-3, "betas": [0.9, 0.999]}},
    "zero_optimization": {"stage": 2, "offload_optimizer": {"device": "cpu"}, "reduce_bucket_size": 5e8},
}
WORDS = "axes: run: objective: minimize: zero_stage zero_stage: when: low: high: exclude: search: cpu true"
SIGNS = """: [ ] { } , - &a *a !!int !!bool !!float !!str !!map 1 -1 1e3 0x .nan .inf ' " # | > % ? << ="""
BLANKS = [" ", "\n", "\n  ", "\t", "---\n"]
TEXTS = st.lists(st.sampled_from([*WORDS.split(), *SIGNS.split(), *BLANKS]), max_size=25).map("".join)


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
    content = {"axes": trial.axes, "config": trial.config()}
    return lines.jsonable(lines.decode(identity | content | result_of({}, has_reference=True)))


def record_line(data: bytes, _: Path) -> None:
    with contextlib.suppress(ZbenchError):
        lines.decode_line(data)
    with contextlib.suppress(ZbenchError):
        lines.decode_line(b'{"checksum":"%08x",%s' % (zlib.crc32(data), data))


def record_file(data: bytes, home: Path) -> None:
    """Put any bytes around a good record, as a torn or damaged file has them."""
    good = lines.encode(lines.decode(RECORD))
    (home / "trials.jsonl").write_bytes(good + data)
    with contextlib.suppress(ZbenchError):
        records = lines.read(home / "trials.jsonl").records
        assert records[0].trial_id == RECORD["trial_id"]


def any_record(data: st.DataObject, _: Path) -> None:
    try:
        item = lines.decode(replaced(RECORD, data))
    except ZbenchError:
        return
    (summary,) = summarize([item])
    for name in ("tokens_per_s", "peak_device_bytes", "verdict"):
        summary.metric(name)


def workers_result(data: st.DataObject, home: Path) -> None:
    result = replaced(result_of({}, has_reference=False), data)

    reporting = World(lambda *_: Attempt("ok", result=result if isinstance(result, dict) else {}))
    trial = make_trial()
    trial = trial.model_copy(update={"verify": trial.verify.model_copy(update={"mode": "off"})})
    item = TrialRunner(reporting, home).run(trial)
    assert item.trial_id == trial.trial_id
    lines.encode(item)


def any_sweep(data: st.DataObject, _: Path) -> None:
    document = replaced(SWEEP, data)
    assume(isinstance(document, dict))  # the file's reader refuses everything else
    with contextlib.suppress(ZbenchError):
        sweep_from_mapping(document, environ={})


def sweep_file(text: str, home: Path) -> None:
    for ending in ("yaml", "toml", "json"):
        path = home / f"fuzzed.{ending}"
        path.write_text(text)
        with contextlib.suppress(ZbenchError):
            sweep = load_sweep(path, (), {}, inputs=False)
            assert ending != "yaml" or recorded_objective(path) == sweep.objective


def deepspeed_configuration(data: st.DataObject, _: Path) -> None:
    with contextlib.suppress(ZbenchError):
        from_deepspeed(replaced(DEEPSPEED, data))


RECORD = record()
READERS: dict[Callable[..., None], st.SearchStrategy[Any]] = {
    record_line: st.binary(max_size=200),
    record_file: st.binary(max_size=200) | st.just(json.dumps(RECORD).encode()),
    any_record: st.data(),
    workers_result: st.data(),
    any_sweep: st.data(),
    sweep_file: TEXTS | st.text(max_size=40),
    deepspeed_configuration: st.data(),
}


def fuzz(reader: Callable[..., None], home: Path, examples: int) -> None:
    @settings(
        max_examples=examples, deadline=None, database=None, suppress_health_check=[HealthCheck.too_slow]
    )
    @given(READERS[reader])
    def read(drawn: Any) -> None:
        reader(drawn, home)

    read()


@pytest.mark.parametrize("reader", READERS, ids=lambda reader: reader.__name__)
def test_whatever_is_read_is_an_answer_or_one_clear_error(
    reader: Callable[..., None], tmp_path: Path
) -> None:
    fuzz(reader, tmp_path, FEW)


@pytest.mark.soak
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("reader", READERS, ids=lambda reader: reader.__name__)
def test_so_it_is_at_length_and_without_growth(reader: Callable[..., None], tmp_path: Path) -> None:
    fuzz(reader, tmp_path, FEW)  # imports, caches
    before = psutil.Process().memory_info().rss
    fuzz(reader, tmp_path, MANY)
    assert psutil.Process().memory_info().rss - before < 256 * MIB
