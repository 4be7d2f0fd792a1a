"""`run.world_size: auto`: ranks are counted where they run."""

from typing import Any

import pytest

from tests.nvml import Device, install
from zbench.launch import executors
from zbench.launch.cluster import ray_cluster
from zbench.launch.cluster.slurm_jobs import SlurmOptions
from zbench.spec.expand import Expansion, warnings_of
from zbench.spec.run import RunSpec
from zbench.spec.sweep import SweepSpec


@pytest.mark.parametrize(
    ("visible", "run", "ranks"),
    [
        (None, {}, 2),
        ("1", {}, 1),
        ("", {}, 2),
        ("1", {"device": "cpu"}, 2),
        (None, {"nodes": 3}, 6),
    ],
)
def test_auto_is_a_rank_a_gpu_and_two_on_cpus(
    visible: str | None, run: dict[str, object], ranks: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    install(monkeypatch, Device("GPU-a"), Device("GPU-b"))
    if visible is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    assert RunSpec.model_validate({"world_size": "auto"} | run).world_size == ranks


@pytest.mark.parametrize(
    ("options", "job", "run", "ranks"),
    [
        (["gpus_per_node=4"], None, {}, 4),
        (["gpus_per_node=4", "nodes=3"], None, {}, 12),
        (["gres=gpu:h100:8"], None, {"nodes": 2}, 16),
        (["gpus_per_node=4"], None, {"device": "cpu"}, 2),
        (["partition=p"], None, {}, 2),  # the GPUs are those of the command's own job, not of the trials'
        (["gpus_per_node=4"], "7", {"nodes": 2}, 16),
    ],
)
def test_auto_counts_the_gpus_of_a_jobs_nodes(
    options: list[str], job: str | None, run: dict[str, object], ranks: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    install(monkeypatch, Device("GPU-of-the-login-node"))
    monkeypatch.setenv("SLURM_GPUS_ON_NODE", "8")
    if job is not None:
        monkeypatch.setenv("SLURM_JOB_ID", job)
    backend = executors.backend_of(options, None, print)
    assert isinstance(backend, SlurmOptions)
    try:
        assert RunSpec.model_validate({"world_size": "auto"} | run).world_size == ranks
    finally:
        executors.backend_of([], None, print)
    assert RunSpec.model_validate({"world_size": "auto"}).world_size == 1


def test_auto_counts_the_gpus_of_rays_nodes(monkeypatch: pytest.MonkeyPatch) -> None:
    def about(name: str, *, alive: bool = True, **has: int) -> dict[str, object]:
        return {"NodeID": name, "NodeManagerAddress": name, "Alive": alive, "Resources": has}

    class Ray:
        @staticmethod
        def nodes() -> list[dict[str, object]]:
            return [
                about("head"),
                *(about(n, CPU=8, GPU=4) for n in "ab"),
                *(about(n, alive=False, CPU=8, GPU=1) for n in "cde"),
                *(about(n, GPU=1) for n in "fgh"),
                about("of-another-kind", CPU=8, GPU=8),
            ]

    monkeypatch.setattr(ray_cluster, "connect", lambda address: Ray)
    executors.backend_of([], "head:6379", print)
    try:
        for run, ranks in (({}, 4), ({"nodes": 2}, 8), ({"nodes": 2, "device": "cpu"}, 4)):
            assert RunSpec.model_validate({"world_size": "auto"} | run).world_size == ranks
    finally:
        executors.backend_of([], None, print)


@pytest.mark.parametrize(
    ("run", "shares"),
    [
        ({"world_size": 3}, True),
        ({"world_size": 2}, False),
        ({"world_size": 3, "nodes": 2}, False),
    ],
)
@pytest.mark.parametrize("gpus", [0, 2])
def test_more_ranks_than_gpus_here_are_warned_of(
    run: dict[str, Any], shares: bool, gpus: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    install(monkeypatch, *(Device(f"GPU-{number}") for number in range(gpus)))
    warnings = list(warnings_of(SweepSpec.model_validate({"run": run}), Expansion([], [])))
    assert len(warnings) == (shares and gpus > 0)
    for text in warnings:
        assert text.startswith("shared GPU: 3 ranks share 2 and communicate through host memory")
        assert text.endswith("set run.world_size: 2, or auto")


def test_an_entry_that_excludes_nothing_is_warned_of() -> None:
    sweep = SweepSpec.model_validate({"exclude": [{"lr": 1}, {"lr": 2}], "run": {"device": "cpu"}})
    (warning,) = warnings_of(sweep, Expansion([], [], unused=[1]))
    assert warning == "exclude.1 matches no point of the sweep: {'lr': 2}"
