"""What follows from a trial before it starts: its reference's key, threads, and how its ranks meet."""

import os
import tempfile
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.making import NEEDED, OTHER
from tests.nvml import Device, install
from tests.worker.conftest import MLP, trial
from zbench.errors import UsageError
from zbench.gpus import MULTI_RANK
from zbench.job.calling import call, private_caches
from zbench.job.failures import first_failure
from zbench.job.jobs import RankJob, reference_key, threads_per_rank
from zbench.spec.run import shared_gpus, slow_update
from zbench.worker import process
from zbench.worker.process import backend_for, device_of, variables_of
from zbench.worker.rank import inputs_of

SHAPES_NO_BIT = {
    "zero_stage", "offload_optimizer", "offload_param", "offload_schedule", "offload_ratio",
    "optimizer_threads", "rollback", "accumulation_mode", "reduce_at", "reduce_bucket_size",
    "allgather_bucket_size", "sub_group_size", "prefetch_bucket_size", "param_persistence_threshold",
    "leaf_modules", "overlap_comm", "compile", "shard_group_size", "ds_config",
    "reduction", "build",
}  # fmt: skip
"""With one backward a step. `ds_config` acts by the keys that follow from it."""


@pytest.mark.parametrize("key", OTHER)
def test_trials_share_a_reference_where_a_key_shapes_no_bit_and_only_there(key: str) -> None:
    def made(keys: dict[str, Any]) -> str:
        adam = {name.partition(".")[2]: value for name, value in keys.items() if "." in name}
        plain = {name: value for name, value in keys.items() if "." not in name}
        return reference_key(trial({**plain, "optimizer": adam}))

    needed = NEEDED.get(key, {})
    assert (made(needed | {key: OTHER[key]}) == made(needed)) == (key in SHAPES_NO_BIT)


SAME: list[dict[str, Any]] = [{"engine": {"engine": name}} for name in ("ddp", "deepspeed")]
SAME += [{"engine": {"initial_loss_scale": 2.0}}, {"run": {"evaluate_every": 1}}]
RUN = {"steps": 4, "seed": 1, "world_size": 3, "threads_per_rank": 2}
OTHERS: list[dict[str, Any]] = [{"run": {key: value}} for key, value in RUN.items()]
OTHERS += [{"workload": {**MLP, "sequence_length": 33}}, {"verify": "reference"}]
OTHERS += [{"engine": {"gradient_accumulation_steps": 2}}]


@pytest.mark.parametrize("keys", [*SAME, *OTHERS], ids=str)
def test_what_shapes_the_trajectory_and_nothing_else_has_its_own_reference(keys: dict[str, Any]) -> None:
    assert trial(**keys).trial_id != trial().trial_id
    assert (reference_key(trial(**keys)) == reference_key(trial())) == (keys in SAME)


def test_the_order_of_rounding_has_its_own_reference() -> None:
    several = {"gradient_accumulation_steps": 2}
    keys = {reference_key(trial({**several, "zero_stage": stage})) for stage in (0, 1, 2, 3)}
    assert len(keys) == 2
    halved = {"dtype": "bfloat16"}
    deepspeed = trial({"engine": "deepspeed", **halved})
    assert reference_key(deepspeed) != reference_key(trial(halved)), "it rounds the model first"
    assert reference_key(trial({**several, "zero_stage": 2, "reduce_at": "boundary"})) in keys


def test_threads_are_the_trials_or_an_equal_share(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.sched_getaffinity", lambda pid: set(range(8)))
    assert threads_per_rank(trial(run={"threads_per_rank": 5})) == 5
    automatic = trial(run={"threads_per_rank": "auto", "world_size": 2})
    assert threads_per_rank(automatic) == 4
    assert threads_per_rank(automatic, local_world_size=1) == 8
    assert threads_per_rank(trial(run={"threads_per_rank": "auto", "world_size": 16})) == 1


@pytest.mark.parametrize(
    ("device", "local_ranks", "devices", "backend"),
    [
        ("cpu", 2, 8, "gloo"),
        ("cuda", 8, 8, "cpu:gloo,cuda:nccl"),
        ("cuda", 2, 1, "gloo"),
    ],
)
def test_ranks_that_share_a_device_do_without_nccl(
    device: str, local_ranks: int, devices: int, backend: str
) -> None:
    assert backend_for(torch.device(device), local_ranks, devices) == backend


@pytest.mark.parametrize(("value", "backend"), [("1", "cpu:gloo,cuda:nccl"), ("0", "gloo")])
def test_nccls_own_variable_lets_ranks_share_a_device(
    monkeypatch: pytest.MonkeyPatch, value: str, backend: str
) -> None:
    monkeypatch.setenv(MULTI_RANK, value)
    monkeypatch.setattr(process, "nccl_version", lambda: (2, 30, 1))
    assert backend_for(torch.device("cuda"), 2, 1) == backend
    assert backend_for(torch.device("cpu"), 2, 0) == "gloo"
    assert (MULTI_RANK in shared_gpus(2, 1)) == (value == "1")


def test_an_older_nccl_cannot_share_a_device(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(MULTI_RANK, "1")
    monkeypatch.setattr(process, "nccl_version", lambda: (2, 29, 7))
    with pytest.raises(UsageError, match=r"expected NCCL 2\.30 or later.*found 2.29.7;.*unset the variable"):
        backend_for(torch.device("cuda"), 2, 1)
    assert backend_for(torch.device("cuda"), 2, 2) == "cpu:gloo,cuda:nccl"


@pytest.mark.parametrize(
    ("meeting", "where"),
    [
        ("tcp://[fd00::5]:4711", {"MASTER_ADDR": "fd00::5", "MASTER_PORT": "4711"}),
        ("file:///tmp/meeting", {"MASTER_ADDR": "127.0.0.1"}),
    ],
)
def test_every_engine_finds_what_torchrun_would_set(meeting: str, where: dict[str, str]) -> None:
    """The third of four ranks, on the second host of two."""
    job = RankJob({}, 2, 4, meeting, "", "", "", local_rank=0, local_world_size=2)
    about = {"RANK": "2", "WORLD_SIZE": "4", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "2"}
    assert variables_of(job) == about | where


@pytest.mark.parametrize(("local_rank", "visible"), [(1, "MIG-b"), (2, "MIG-a")])
def test_a_rank_has_a_slice_of_a_gpu_of_its_own(
    local_rank: int, visible: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """CUDA shows a process one slice only, so that both ranks would have shared the first."""
    install(monkeypatch, Device("GPU-x", slices=[Device("MIG-a"), Device("MIG-b")]))
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "MIG-a,MIG-b")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setattr(torch.cuda, "set_device", lambda device: None)
    assert device_of("auto", local_rank) == torch.device("cuda", 0)
    assert os.environ["CUDA_VISIBLE_DEVICES"] == visible


def test_a_device_is_the_cpu_unless_cuda_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert device_of("cpu") == device_of("auto") == torch.device("cpu")
    with pytest.raises(UsageError, match="cuda is not available here"):
        device_of("cuda")


def test_rocm_is_refused_with_the_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.version, "hip", "6.4.1")
    with pytest.raises(UsageError, match=r"ROCm 6\.4\.1.*use cpu"):
        device_of("auto")
    assert device_of("cpu") == torch.device("cpu")


@pytest.mark.parametrize(
    ("engine", "told"),
    [
        ({}, True),
        ({"offload_optimizer": "cpu", "offload_ratio": 0.5, "zero_stage": 2}, True),
        ({"offload_optimizer": "cpu", "zero_stage": 2}, False),
    ],
)
def test_an_update_without_our_kernels_is_told_where_a_gpu_makes_it(
    engine: dict[str, Any], told: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(process, "cuda_unavailable_reason", lambda: "NVRTC is missing")
    job = RankJob({}, 0, 2, "file:///tmp/meeting", "", "", "")
    gpus, warnings = process.gpus_of(job, trial(engine), torch.device("cuda", 0))
    assert gpus == 2
    assert warnings == ([slow_update("NVRTC is missing")] if told else [])
    assert process.gpus_of(job, trial(engine), torch.device("cpu"))[1] == []


def test_ranks_that_share_the_gpus_of_each_host_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(process, "cuda_unavailable_reason", lambda: None)
    job = RankJob({}, 0, 8, "file:///tmp/meeting", "", "", "", local_world_size=4)
    assert process.gpus_of(job, trial(), torch.device("cuda", 0)) == (4, [shared_gpus(8, 4)])


@pytest.mark.parametrize("variable", ["TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR"])
def test_compiled_code_is_kept_in_a_private_folder_or_refused(
    variable: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    for name in ("TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR"):
        monkeypatch.setenv(name, "")  # so that it is put back
    private_caches()
    folder = Path(os.environ[variable])
    assert folder.is_relative_to(tmp_path / "zbench")
    assert folder.stat().st_mode & 0o777 == 0o700
    folder.chmod(0o777)
    monkeypatch.setenv(variable, "")
    private_caches()
    assert Path(os.environ[variable]).parent == tmp_path, "this process's own temporary folder instead"
    monkeypatch.setenv(variable, str(folder))
    reported = tmp_path / "result"
    assert call("builtins:print", lambda: None, (str(reported), 0)) == 1
    failure = first_failure(str(reported), 1)
    assert failure is not None
    assert (
        f"code that others put there would be run: remove it, or name another by {variable}"
        in failure.message
    )
    assert os.environ["TORCHINDUCTOR_CPP_CACHE_PRECOMPILE_HEADERS"] == "0"


@pytest.mark.parametrize("name", ["shape.json", "none.json"])
def test_the_file_of_a_models_shape_is_an_input(name: str, tmp_path: Path) -> None:
    (tmp_path / "shape.json").write_text("{}")
    read = inputs_of(trial(workload={"model": f"hf:{name}"}), tmp_path)
    assert (name in read) == (name == "shape.json")
