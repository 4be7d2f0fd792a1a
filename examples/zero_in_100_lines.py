"""ZeRO stages 1, 2 and 3 (Rajbhandari et al., 2020, arXiv:1910.02054) in a hundred lines, to read first.

    python examples/zero_in_100_lines.py  # two gloo ranks on this machine; or with torchrun, any number:
    torchrun --nproc-per-node 4 examples/zero_in_100_lines.py

Data parallel training keeps parameters, gradients and Adam's state on every rank. Each stage shards one
more of them: 1 the optimizer's state, 2 the gradients, 3 the parameters. Three ideas do it, here and in
`zbench.engine`:

- a flat layout: a module's parameters lie end to end in one tensor, cut into one shard for each rank;
- hooks: autograd says when a module runs, and when its gradients are there;
- collectives: a reduce-scatter brings each rank the summed gradients of its shard, an all-gather brings the
  new values back.

What the engine has and this has not: buckets, prefetching, offload, mixed precision, clipping, checkpoints.
"""

import os
from collections.abc import Callable
from tempfile import TemporaryDirectory

import torch
import torch.distributed as dist
from torch import Tensor, nn

ALIGNMENT = 64  # elements: a weight that begins elsewhere would give matrix products other bits


def round_up(count: int, multiple: int) -> int:
    return -(-count // multiple) * multiple


class FlatModule:
    """The parameters of one module in one flat tensor, `full`, and this rank's `shard` of it."""

    def __init__(self, module: nn.Module, stage: int) -> None:
        self.stage, self.parameters = stage, list(module.parameters(recurse=False))
        world, rank = dist.get_world_size(), dist.get_rank()
        self.starts, end = [], 0
        for p in self.parameters:
            self.starts.append(end)
            end += round_up(p.numel(), ALIGNMENT)
        self.full = torch.zeros(round_up(end, world * ALIGNMENT))
        for p, place in zip(self.parameters, self.views(self.full), strict=True):
            p.data = place.copy_(p.data)  # from now on the model computes with `full`
        dist.broadcast(self.full, 0)
        self.shard = nn.Parameter(self.full.chunk(world)[rank].clone())
        self.missing = len(self.parameters)
        for p in self.parameters:
            p.register_post_accumulate_grad_hook(self.gradient_arrived)
        if stage == 3:
            module.register_forward_pre_hook(lambda *_: self.gather())
            module.register_forward_hook(lambda module, inputs, output: self.after_forward(output))
            self.release()

    def views(self, flat: Tensor) -> list[Tensor]:
        """Return the place of each parameter in a flat tensor."""
        places = zip(self.starts, self.parameters, strict=True)
        return [flat[start : start + p.numel()].view(p.shape) for start, p in places]

    def gather(self) -> None:
        """All-gather: fill `full` from every rank's shard."""
        self.full.untyped_storage().resize_(self.full.nbytes)
        dist.all_gather(list(self.full.chunk(dist.get_world_size())), self.shard.data)

    def release(self) -> None:
        """Free the memory of `full`; the parameters and what autograd saved of them stay views of it."""
        self.full.untyped_storage().resize_(0)

    def after_forward(self, output: Tensor) -> None:
        self.release()
        if output.requires_grad:  # when its gradient is there, backward is about to reach this module
            output.register_hook(lambda gradient: self.gather())

    def gradient_arrived(self, p: nn.Parameter) -> None:
        self.missing -= 1
        if self.missing == 0 and self.stage >= 2:
            self.reduce()  # within backward, so the gradients of one module at a time are whole
            if self.stage == 3:
                self.release()

    def reduce(self) -> None:
        """Reduce-scatter: average the gradients of this rank's shard over all ranks, and drop the others."""
        flat = torch.zeros(len(self.full))
        for p, place in zip(self.parameters, self.views(flat), strict=True):
            if p.grad is not None:
                place.copy_(p.grad)
            p.grad = None
        self.shard.grad = torch.empty_like(self.shard)
        dist.reduce_scatter(self.shard.grad, list(flat.chunk(dist.get_world_size())))
        self.shard.grad /= dist.get_world_size()
        self.missing = len(self.parameters)


class Zero:
    """AdamW on this rank's shards of a model's parameters. Each step: a backward of the loss, then `step`."""

    def __init__(self, model: nn.Module, stage: int, lr: float = 1e-3) -> None:
        self.stage = stage
        owners = [m for m in model.modules() if any(True for _ in m.parameters(recurse=False))]
        self.modules = [FlatModule(m, stage) for m in owners]
        shards = [m.shard for m in self.modules]
        self.optimizer = torch.optim.AdamW(shards, lr=lr, weight_decay=0.01, fused=True)

    def step(self) -> None:
        for m in self.modules:
            if self.stage == 1:
                m.reduce()  # gradients were whole on every rank until here
        self.optimizer.step()
        for m in self.modules:
            if self.stage < 3:
                m.gather()  # stage 3 gathers when a module runs


def train(stage: int, steps: int = 20) -> float:
    """Fit a small network to a fixed function with every rank's own batches; return the last loss."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 1))
    zero = Zero(model, stage, lr=1e-2)
    torch.manual_seed(1 + dist.get_rank())
    for _ in range(steps):
        x = torch.randn(256, 8)
        loss = (model(x) - x.square().sum(1, keepdim=True)).square().mean()
        loss.backward()
        zero.step()
    return loss.item()


def train_all() -> None:
    for stage in (1, 2, 3):
        loss = train(stage)
        if dist.get_rank() == 0:
            print(f"ZeRO-{stage}: loss {loss:.6f}")


def run_rank(rank: int, store: str, work: Callable[[], None]) -> None:
    """Do `work` as one of two ranks, which find one another through the file `store`."""
    torch.set_num_threads(1)  # as under torchrun: the ranks share the cores
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=2)
    work()
    dist.destroy_process_group()


def run(work: Callable[[], None]) -> None:
    """Do `work` on every rank: on those that torchrun has started, or on two of this machine."""
    if "RANK" in os.environ:
        dist.init_process_group("gloo")
        work()
        dist.destroy_process_group()
    else:
        with TemporaryDirectory() as folder:
            torch.multiprocessing.spawn(run_rank, args=(f"{folder}/store", work), nprocs=2)


if __name__ == "__main__":
    run(train_all)
