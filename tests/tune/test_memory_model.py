"""The formula of ZeRO by hand, and a fit that predicts what it has not seen."""

import pytest

from tests.making import make_trial
from zbench.record.record import Memory, Record
from zbench.spec.trial import TrialSpec
from zbench.tune.memory_model import MemoryModel, known_parameters, shares
from zbench.tune.space import Space

from .fakes import small_sweep

MIB = 2**20
AXES = {"zero_stage": [0, 1, 2, 3], "offload_optimizer": ["none", "cpu"], "micro_batch_size": [1, 2, 4, 8]}


def trial(*, micro_batch_size: int = 2, world_size: int = 4, **engine: object) -> TrialSpec:
    buckets = {"reduce_bucket_size": 100, "allgather_bucket_size": 50}
    workload = {"model": "gpt", "micro_batch_size": micro_batch_size}
    return make_trial(buckets | engine, workload=workload, world_size=world_size)


@pytest.mark.parametrize(
    ("changes", "bytes_per_parameter"),
    [
        ({"zero_stage": 0}, 4 + 4 + 8),
        ({"zero_stage": 1}, 4 + 4 + 8 / 4),
        ({"zero_stage": 2}, 4 + 4 / 4 + 8 / 4),
        ({"zero_stage": 3}, 4 / 4 + 4 / 4 + 8 / 4),
        ({"zero_stage": 1, "offload_optimizer": "cpu"}, 4 + 4),
        ({"zero_stage": 1, "offload_optimizer": "cpu", "offload_ratio": 0.5}, 4 + 4 + 8 / 4 / 2),
        ({"zero_stage": 3, "offload_param": "cpu"}, 0 + 4 / 4 + 8 / 4),
        ({"zero_stage": 0, "dtype": "bfloat16"}, 2 + 4 + 8 + 4),
        ({"zero_stage": 0, "optimizer": {"moments_dtype": "bfloat16"}}, 4 + 4 + 4),
        ({"zero_stage": 0, "optimizer": {"amsgrad": True}}, 4 + 4 + 12),
    ],
)
def test_bytes_of_a_parameter(changes: dict[str, object], bytes_per_parameter: float) -> None:
    assert shares(trial(**changes)).per_parameter == pytest.approx(bytes_per_parameter)


def test_bytes_of_buckets() -> None:
    assert shares(trial(zero_stage=0)).buckets(10**6) == 4 * (2 * 100)
    assert shares(trial(zero_stage=1, overlap_comm=False)).buckets(10**6) == 4 * (100 + 50)
    assert shares(trial(zero_stage=1, overlap_comm=False)).buckets(60) == 4 * (60 + 50), (
        "no larger than the model"
    )
    assert shares(trial(zero_stage=0, world_size=1)).buckets(10**6) == 0


def test_the_size_of_built_in_models_is_known() -> None:
    assert known_parameters(trial().workload) == pytest.approx(670_000, rel=0.1)
    mlp = trial().workload.model_copy(update={"model": "mlp"})
    assert known_parameters(mlp) == pytest.approx(3 * 256 * 256 + 2 * 256 * 256, rel=0.1)
    assert known_parameters(trial().workload.model_copy(update={"model": "mine:make"})) is None


def _measured(peak: float) -> list[Record]:
    return [Record("r", "t", 0, {}, {}, "ok", memory=Memory(int(peak), 0, int(peak)))]


@pytest.mark.parametrize("model", ["gpt", "mine:make"])
def test_a_fit_predicts_points_it_has_not_seen(model: str) -> None:
    space = Space(small_sweep(axes=AXES, workload={"model": "gpt", "preset": "nano"}))
    trials = [space.trial(point) for point in space.points() or ()]
    whole = [
        t.model_copy(update={"workload": t.workload.model_copy(update={"model": model})})
        for t in trials
        if isinstance(t, TrialSpec)
    ]
    parameters, per_token, constant = 700_000, 9_000, 3 * MIB

    def truth(t: TrialSpec) -> float:
        return shares(t).state(parameters) + per_token * shares(t).tokens + constant

    fitted = MemoryModel()
    for seen in whole[::7]:
        fitted.observe(seen, _measured(truth(seen)))
    for other in whole:
        assert fitted.predict(other) == pytest.approx(truth(other), rel=0.1)
    hopeless = [t for t in whole if fitted.hopeless(t, 16 * MIB)]
    assert hopeless
    assert all(truth(t) > 16 * MIB for t in hopeless)
    assert all(fitted.hopeless(t, 16 * MIB) for t in whole if truth(t) > 16 * MIB * 1.3)


def test_nothing_is_hopeless_before_anything_was_measured() -> None:
    model = MemoryModel()
    assert model.hopeless(trial(), 1.0) is None
    for _ in range(2):
        model.observe(trial(), _measured(10 * MIB))
        assert model.hopeless(trial(), 1.0) is None


def test_an_error_of_the_model_keeps_it_from_ruling_points_out() -> None:
    model = MemoryModel()
    for stage, peak in ((0, 100 * MIB), (1, 900 * MIB), (2, 5 * MIB), (3, 400 * MIB)):
        model.observe(trial(zero_stage=stage), _measured(peak))
    assert model.hopeless(trial(zero_stage=0), 60 * MIB) is None


def test_a_reason_names_both_sizes() -> None:
    model = MemoryModel()
    for micro in (1, 2, 4):
        model.observe(trial(micro_batch_size=micro), _measured(micro * 100 * MIB))
    reason = model.hopeless(trial(micro_batch_size=16), 512 * MIB)
    assert reason is not None
    assert "1.56 GiB by the memory model, the limit is 512 MiB" in reason


def test_trials_are_ordered_by_memory_before_anything_was_measured() -> None:
    model = MemoryModel()
    ranks = [model.rank(trial(zero_stage=stage)) for stage in (3, 2, 1, 0)]
    assert ranks == sorted(ranks)


def test_a_failed_trial_teaches_no_peak() -> None:
    model = MemoryModel()
    for _ in range(5):
        model.observe(trial(), [Record("r", "t", 0, {}, {}, "oom")])
    assert model.hopeless(trial(), 1.0) is None
