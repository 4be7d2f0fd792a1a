"""One rank of one contender: trains a GPT step by step when told to, and reports each step's time.

Run by `zbench.bench.turns`, also under an interpreter that has only torch and a peer: nothing of zbench but
the model is imported unless the contender is zbench's own engine. Reads `go N` lines on standard input and
answers each with one JSON line. MODE is `alone` (no communication), `ddp`, `zero_redundancy`, `fsdp2`,
`deepspeed-STAGE[-offload]`, `zbench-STAGE[-offload[-speculative]]`, or one that is compiled:
`alone-inductor`, `ddp-inductor`, `zbench-1-inductor`. THREADS in the environment are the threads that a rank
computes with, else one.
"""

import ctypes
import json
import os
import resource
import sys
import time
from collections.abc import Callable
from typing import Any

CLIP, LEARNING_RATE, BUCKET = 1.0, 1e-3, 5_000_000
PREFETCH = {"prefetch_bucket_size": 1_100_000}  # one weight ahead, where state is offloaded to save memory
VOCABULARY, LENGTH, BATCH = 8192, 128, 2


def load_shim(path: str) -> Any:
    """Return the library that counts torch's CPU allocations, or None; before torch is imported."""
    if not path:
        return None
    library = ctypes.CDLL(path, mode=ctypes.RTLD_GLOBAL)
    library.zbench_memory_peak_bytes.restype = ctypes.c_int64
    library.zbench_memory_reset_peak.restype = None
    return library


Step = Callable[[Any, Any], None]


def torch_peer(mode: str, model: Any, world: int) -> Step:
    """Return the training step of a data-parallel wrapper of torch, clipped, with its fused AdamW."""
    import torch
    from torch.nn.parallel import DistributedDataParallel

    def adamw(parameters: Any) -> Any:
        return torch.optim.AdamW(parameters, lr=LEARNING_RATE, fused=True)

    mode, _, compiler = mode.partition("-")
    module = model
    if mode == "fsdp2":
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.fsdp import fully_shard

        mesh = init_device_mesh("cpu", (world,))
        for block in model.blocks:
            fully_shard(block, mesh=mesh)
        fully_shard(model, mesh=mesh)
    elif mode != "alone":
        module = DistributedDataParallel(model, gradient_as_bucket_view=True)
    if mode == "zero_redundancy":
        from torch.distributed.optim import ZeroRedundancyOptimizer

        optimizer: Any = ZeroRedundancyOptimizer(
            module.parameters(),
            torch.optim.AdamW,
            lr=LEARNING_RATE,
            fused=True,
            parameters_as_bucket_view=True,
        )
    else:
        optimizer = adamw(module.parameters())
    if compiler:
        module = torch.compile(module, backend=compiler)  # around DDP, which splits its graphs at buckets

    def step(ids: Any, targets: Any) -> None:
        module(ids, targets).backward()
        torch.nn.utils.clip_grad_norm_(module.parameters(), CLIP)
        optimizer.step()
        optimizer.zero_grad()

    return step


def deepspeed_peer(mode: str, model: Any) -> Step:
    """Return DeepSpeed's training step for `deepspeed-STAGE[-offload]`."""
    import deepspeed  # type: ignore[import-not-found, unused-ignore]

    _, stage, *offload = mode.split("-")
    zero: dict[str, Any] = {
        "stage": int(stage),
        "reduce_bucket_size": BUCKET,
        "allgather_bucket_size": BUCKET,
    }
    if offload:
        zero["offload_optimizer"] = {"device": "cpu"}
    config = {
        "train_micro_batch_size_per_gpu": BATCH,
        "gradient_accumulation_steps": 1,
        "gradient_clipping": CLIP,
        "zero_optimization": zero,
        "optimizer": {"type": "AdamW", "params": {"lr": LEARNING_RATE, "torch_adam": not offload}},
        "zero_allow_untested_optimizer": True,
        "zero_force_ds_cpu_optimizer": False,
    }
    engine, *_ = deepspeed.initialize(model=model, model_parameters=model.parameters(), config=config)

    def step(ids: Any, targets: Any) -> None:
        engine.backward(engine(ids, targets))
        engine.step()

    return step


def own_engine(mode: str, model: Any) -> Step:
    """Return zbench's training step for `zbench-STAGE[-offload[-speculative]]` or `zbench-1-inductor`."""
    from zbench.engine import build_engine
    from zbench.spec.engine import EngineSpec

    _, stage, *options = mode.split("-")
    spec = EngineSpec.model_validate(
        {
            "zero_stage": int(stage),
            "offload_optimizer": "cpu" if "offload" in options else "none",
            "offload_schedule": "speculative" if "speculative" in options else "after_backward",
            "compile": "inductor" if "inductor" in options else "off",
            "gradient_clipping": CLIP,
            "reduce_bucket_size": BUCKET,
            "allgather_bucket_size": BUCKET,
            "optimizer": {"lr": LEARNING_RATE},
            **(PREFETCH if options[:1] == ["offload"] else {}),
        }
    )
    engine = build_engine(model, spec)

    def step(ids: Any, targets: Any) -> None:
        engine.backward(model(ids, targets))
        engine.step()

    return step


def make_step(mode: str, model: Any, world: int) -> Step:
    """Return the contender's training step on one micro-batch."""
    if mode.startswith("zbench"):
        return own_engine(mode, model)
    if mode.startswith("deepspeed"):
        return deepspeed_peer(mode, model)
    return torch_peer(mode, model, world)


def main(
    mode: str, shim_path: str, layers: int, width: int, micro_batch: int = BATCH, length: int = LENGTH
) -> None:
    """Serve `go N` until standard input ends."""
    shim = load_shim(shim_path)
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # libraries print to standard output; answers must stand alone
    import torch
    import torch.distributed as dist

    from zbench.bench.toy_gpt import Gpt, batch

    torch.set_num_threads(int(os.environ.get("THREADS", "1")))
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    step = make_step(mode, Gpt(layers, width, VOCABULARY), world)
    done = 0
    for line in sys.stdin:
        count = int(line.split()[1])
        if shim is not None:
            shim.zbench_memory_reset_peak()
        seconds = []
        for _ in range(count):
            ids, targets = batch(done * world + rank, micro_batch, length, VOCABULARY)
            dist.barrier()
            begin = time.perf_counter()
            step(ids, targets)
            dist.barrier()
            seconds.append(time.perf_counter() - begin)
            done += 1
        rss = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
        peak = int(shim.zbench_memory_peak_bytes()) if shim is not None else None
        print(json.dumps({"seconds": seconds, "peak_bytes": peak, "rss_bytes": rss}), file=answers)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], *map(int, sys.argv[3:]))
