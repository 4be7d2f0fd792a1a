"""DeepSpeed's ZeRO with optimizer and parameter offload: `engine: deepspeed`, stages 0 to 3."""

import os
import socket
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from zbench.engine.assembly import settings
from zbench.engine.assembly.discovery import check_dimensions
from zbench.engine.protocols import StepInfo
from zbench.peers.extensions import remove_abandoned_locks
from zbench.peers.stepping import TorchAdam, part_of
from zbench.spec.deepspeed import engine_configuration, has_amsgrad
from zbench.spec.engine import EngineSpec
from zbench.spec.foreign.deepspeed import MANAGED

_ALWAYS = {
    "train_micro_batch_size_per_gpu": 1,  # only its own throughput report reads it
    "zero_allow_untested_optimizer": True,
    "zero_force_ds_cpu_optimizer": False,
}


def configuration(spec: EngineSpec) -> dict[str, Any]:
    """Return DeepSpeed's configuration: the user's own, if any, with the optimizer and batch keys set.

    DeepSpeed's Adam updates offloaded state without AMSGrad; else torch's Adam does, without a compiler.
    """
    defaults = engine_configuration(spec, torch_adam=has_amsgrad(spec) or spec.offload_optimizer == "none")
    if spec.ds_config is None:
        return defaults | _ALWAYS
    assert isinstance(spec.ds_config, dict), "a file was read when the sweep was expanded"
    counted: dict[str, Any] = {"gradient_accumulation_steps": spec.gradient_accumulation_steps}
    if MANAGED in defaults:
        counted[MANAGED] = defaults[MANAGED]
    theirs = _ALWAYS | spec.ds_config | counted
    if "optimizer" not in theirs or not torch.cuda.is_available():
        theirs["optimizer"] = defaults["optimizer"]  # torch's Adam: DeepSpeed's fused Adam needs CUDA
    return theirs


class DeepSpeedEngine:
    """A TrainingEngine that runs DeepSpeed. DeepSpeed counts micro-batches in mode `micro_steps` only."""

    def __init__(self, module: Any, model: nn.Module, spec: EngineSpec) -> None:
        self.module, self._model, self._stage = module, model, spec.zero_stage
        self._counting = settings.accumulation(spec)
        self._clipping = spec.gradient_clipping
        self._amsgrad = has_amsgrad(spec)
        self._has_masters = spec.dtype != "float32"
        self._counted = spec.accumulation_mode == "micro_steps"
        self._has_stepped = False

    def backward(self, loss: Tensor, last: bool | None = None) -> None:
        """Run DeepSpeed's backward, which accumulates gradients. UsageError if no backward is allowed now."""
        this = self._counting.next(last)
        if not self._counted and this.last is not None:
            self.module.set_gradient_accumulation_boundary(this.last)
        self.module.backward(loss)
        self._counting.done()
        if self._counted and not this.last:
            self.module.step()  # DeepSpeed counts micro-batches here, and updates at the last one only

    def step(self) -> StepInfo:
        """Clip and update by DeepSpeed. UsageError if gradients are not complete."""
        self._counting.check_step()
        self.module.step()
        self._has_stepped = True
        self._counting.reset()
        norm = self.module.get_global_grad_norm()  # from stage 1 on it is also known without clipping
        norm = float(norm) if norm is not None and (self._clipping or self._stage > 0) else None
        return StepInfo(norm, clipped=norm is not None and 0 < self._clipping < norm)

    def full_parameters(self) -> dict[str, Tensor]:
        """Return name -> copy of the unsharded float32 parameter (its master weights), on every rank."""
        import deepspeed

        named = dict(self._model.named_parameters())
        if self._has_masters:
            masters = {n: deepspeed.utils.safe_get_full_fp32_param(p) for n, p in named.items()}
            return {n: (p if masters[n] is None else masters[n]).float().clone() for n, p in named.items()}
        with deepspeed.zero.GatheredParameters(list(named.values()), enabled=self._stage == 3):
            return {name: p.detach().float().clone() for name, p in named.items()}

    def first_moments(self) -> dict[str, Tensor]:
        """Return name -> unsharded float32 exp_avg of every parameter that has one, on every rank."""
        moments = self._moments().items()
        return {name: state["exp_avg"].float() for name, state in moments if "exp_avg" in state}

    def optimizer_parts(self) -> dict[str, dict[str, Tensor]]:
        """Return this rank's fragments of master weights and moments, as views; at stage 0 whole ones."""
        parts: dict[str, dict[str, Tensor]] = {}
        for name, p in self._model.named_parameters():
            if not p.requires_grad:
                continue
            if self._stage == 3:
                start, length = _partition(p)
                state = self._of_stage_3(p)
            elif (fragment := getattr(p, "_hp_mapping", None)) is not None:
                start, length = fragment.lp_fragment_address.start, fragment.lp_fragment_address.numel
                moments = fragment.optim_fragment or {}
                state = {"param": fragment.hp_fragment} | {k: moments[k] for k in self._kinds if k in moments}
            elif hasattr(p, "_hp_mapping"):  # other ranks have all of it
                continue
            else:
                start, length = 0, p.numel()
                state = part_of(p.float(), self.module.optimizer.state[p] if self._has_stepped else {})
            if length > 0:
                parts[f"{name}@{start}"] = {k: value.detach()[:length] for k, value in state.items()}
        return parts

    def _of_stage_3(self, parameter: Any) -> dict[str, Tensor]:
        """Return this rank's partition of a parameter, padded at the end, and of its moments."""
        import deepspeed

        read = deepspeed.utils.safe_get_local_optimizer_state
        kinds = self._kinds if self._has_stepped else ()
        master = deepspeed.utils.safe_get_local_fp32_param(parameter)
        return {"param": master} | {kind: read(parameter, kind) for kind in kinds}

    @property
    def _kinds(self) -> tuple[str, ...]:
        """Names of the moments."""
        return ("exp_avg", "exp_avg_sq", *(("max_exp_avg_sq",) if self._amsgrad else ()))

    def _moments(self) -> dict[str, dict[str, Tensor]]:
        """Return name -> torch's name of a moment -> unsharded tensor, on every rank; empty before a step."""
        import deepspeed

        trained = {name: p for name, p in self._model.named_parameters() if p.requires_grad}
        if not self._has_stepped:
            return {}
        if self._stage == 0:
            return {name: self.module.optimizer.state[p] for name, p in trained.items()}
        mappings = (getattr(p, "_hp_mapping", None) for p in trained.values())
        linked = all(one is None or "exp_avg" in (one.optim_fragment or {}) for one in mappings)
        on_all = torch.tensor(float(linked))
        dist.all_reduce(on_all, dist.ReduceOp.MIN)
        if not on_all:  # reading would fail on one rank and hang on the others
            return {}
        read = deepspeed.utils.safe_get_full_optimizer_state
        return {name: {kind: read(p, kind) for kind in self._kinds} for name, p in trained.items()}

    def memory_by_category(self) -> dict[str, int]:
        """Return the bytes of the parameters. DeepSpeed's own buffers are only in the measured peak."""
        return {"parameters": sum(p.nbytes for p in self._model.parameters())}

    def close(self) -> None:
        """Release DeepSpeed's hooks and buffers."""
        self.module.destroy()


def _partition(parameter: Any) -> tuple[int, int]:
    """Return the first element, and the number of elements without padding, of this rank's partition at
    stage 3.
    """
    start = dist.get_rank() * parameter.ds_tensor.ds_numel
    return start, min(parameter.ds_tensor.ds_numel, parameter.ds_numel - start)


def build_engine(
    model: nn.Module,
    spec: EngineSpec,
    process_group: dist.ProcessGroup | None = None,
    *,
    instruments: object = None,
) -> DeepSpeedEngine:
    """Return DeepSpeed's engine. `instruments` is ignored: collectives are not counted."""
    check_dimensions(model, spec.engine)
    _describe_launch(next(model.parameters()).device)
    if dist.get_rank() == 0:
        remove_abandoned_locks()
    import deepspeed

    module, *_ = deepspeed.initialize(
        model=model,
        model_parameters=TorchAdam.of(model, spec).groups,
        config=configuration(spec),
        dist_init_required=False,
    )
    dist.barrier()  # now every rank has mapped the others' memory
    _shared_memory().unlink(missing_ok=True)
    return DeepSpeedEngine(module, model, spec)


def _describe_launch(device: torch.device) -> None:
    """Set the variables of DeepSpeed's launcher. It takes the local rank for the number of the GPU.

    The process group exists, so address and port only name the memory that ranks of one host share; rank 0's
    process ID as the port makes that name unique.
    """
    if not torch.cuda.is_available():
        os.environ.setdefault("DS_ACCELERATOR", "cpu")
    rank, world = dist.get_rank(), dist.get_world_size()
    places = [("", 0)] * world
    dist.all_gather_object(places, (socket.gethostname(), os.getpid()))
    hosts = [host for host, _ in places]
    os.environ.setdefault("LOCAL_RANK", str(hosts[:rank].count(hosts[rank])))
    if device.type == "cuda":  # ranks may share it
        os.environ["LOCAL_RANK"] = str(device.index)
    here = os.environ.get("LOCAL_WORLD_SIZE", str(hosts.count(hosts[rank])))
    os.environ.setdefault("MASTER_ADDR", "127.0.0.1" if int(here) == world else hosts[0])
    about = {"RANK": rank, "WORLD_SIZE": world, "LOCAL_SIZE": here, "MASTER_PORT": places[0][1]}
    os.environ.update({name: str(value) for name, value in about.items()})


def _shared_memory() -> Path:
    """Return the file of the 69 MB of memory that this rank shares with the other ranks of its host.

    DeepSpeed names it by MASTER_ADDR and MASTER_PORT and does not remove it. Two engines of one user with the
    same values, or without values, would sum their gradients in the same memory.
    """
    address, port = os.environ["MASTER_ADDR"], os.environ["MASTER_PORT"]
    name = f"deepspeed_allreduce_buffer_{os.getuid()}_{address}_{port}_{dist.get_rank()}"
    return Path("/dev/shm", name)
