"""ZeRO-2 with what makes it fast: buckets, overlap, offload. Read `zero_in_100_lines.py` first.

    python examples/zero_with_buckets.py  # two gloo ranks on this machine; or with torchrun, any number:
    torchrun --nproc-per-node 4 examples/zero_with_buckets.py

- Buckets: many small collectives cost more than one large one, so parameters share blocks of memory.
- Overlap: a full bucket is reduced while backward goes on, and a bucket's new values are gathered while the
  next bucket is updated.
- Offload: master weights, moments and the sums of gradients are in host memory, where the CPU updates them.

A comment in brackets names the file of `zbench/engine` that does the same in earnest. What the engine has
and this has not: parameters without a gradient, other dtypes, edited weights, clipping, ranks that disagree.
"""

from collections import deque
from functools import partial
from itertools import accumulate

import torch
import torch.distributed as dist
from torch import Tensor, nn
from zero_in_100_lines import ALIGNMENT, round_up, run

IN_FLIGHT = 2  # buckets that are reduced at once: each holds memory until its sums are stored


class Bucket:
    """Whole parameters, end to end in one block; part r of the block belongs to rank r [partition.py].

    Its gradients are absent, being written, in flight, or in the sums [gradients/bucket.py].
    """

    def __init__(self, parameters: list[nn.Parameter], lr: float) -> None:
        self.world = dist.get_world_size()
        *self.starts, end = accumulate((round_up(p.numel(), ALIGNMENT) for p in parameters), initial=0)
        self.parameters = parameters
        self.values = torch.zeros(round_up(end, self.world * ALIGNMENT), device=parameters[0].device)
        for p, place in zip(parameters, self.views(self.values), strict=True):
            p.data = place.copy_(p.data)
        dist.broadcast(self.values, 0)
        self.shard = self.values.chunk(self.world)[dist.get_rank()]
        self.master = nn.Parameter(self.shard.to("cpu", copy=True))  # [optimizer/masters.py]
        self.optimizer = torch.optim.AdamW([self.master], lr=lr, weight_decay=0.01, fused=True)
        self.missing = len(parameters)
        self.gradients: Tensor | None = None

    def views(self, block: Tensor) -> list[Tensor]:
        places = zip(self.starts, self.parameters, strict=True)
        return [block[start : start + p.numel()].view(p.shape) for start, p in places]

    def write(self, index: int, gradient: Tensor) -> None:
        if self.gradients is None:
            self.gradients = torch.zeros_like(self.values)
        self.views(self.gradients)[index].copy_(gradient)
        self.missing -= 1

    def launch(self) -> None:
        """Begin to sum over the ranks; until `complete` nobody writes the gradients."""
        assert self.gradients is not None
        self.part = torch.empty_like(self.shard)
        parts = list(self.gradients.chunk(self.world))
        self.work = dist.reduce_scatter(self.part, parts, async_op=True)

    def complete(self) -> None:
        """Add this rank's part of the sums to those of earlier backwards [gradients/host.py: HostSums]."""
        self.work.wait()
        part = self.part.to("cpu")
        self.master.grad = part if self.master.grad is None else self.master.grad.add_(part)
        self.gradients, self.missing = None, len(self.parameters)
        del self.work, self.part

    def update(self, factor: float) -> dist.Work:
        """Let Adam update the masters, and begin to gather the new values [optimizer/shard_optimizer.py]."""
        assert self.master.grad is not None
        self.master.grad *= factor
        self.optimizer.step()
        self.master.grad = None
        self.shard.copy_(self.master.detach())
        parts = list(self.values.chunk(self.world))
        return dist.all_gather(parts, self.shard.clone(), async_op=True)  # [parameters/replicated.py]


class Zero2:
    """AdamW with sharded gradients and states. A step: `backward` of one or more losses, then `step`."""

    def __init__(self, model: nn.Module, bucket_size: int, lr: float = 1e-3) -> None:
        groups: list[list[nn.Parameter]] = [[]]
        for p in reversed(list(model.parameters())):  # backward produces gradients in about this order
            if groups[-1] and sum(q.numel() for q in groups[-1]) + p.numel() > bucket_size:
                groups.append([])
            groups[-1].append(p)
        self.buckets = [Bucket(group, lr) for group in groups]
        self.running: deque[Bucket] = deque()
        self.next = self.backwards = 0
        for bucket in self.buckets:  # [parameters/hooks.py: GradientHooks]
            for i, p in enumerate(bucket.parameters):
                p.register_post_accumulate_grad_hook(partial(self.arrived, bucket, i))

    def arrived(self, bucket: Bucket, index: int, p: nn.Parameter) -> None:
        """Take a gradient. Full buckets are launched in one order: collectives must agree over all ranks."""
        bucket.write(index, p.grad)
        p.grad = None
        while self.next < len(self.buckets) and self.buckets[self.next].missing == 0:
            if len(self.running) == IN_FLIGHT:
                self.running.popleft().complete()
            self.buckets[self.next].launch()
            self.running.append(self.buckets[self.next])
            self.next += 1

    def backward(self, loss: Tensor) -> None:  # [engine.py, gradients/gradients.py]
        loss.backward()
        while self.running:
            self.running.popleft().complete()
        self.next, self.backwards = 0, self.backwards + 1

    def step(self) -> None:
        """Update with the mean over ranks and backwards."""
        factor = 1 / (dist.get_world_size() * self.backwards)
        gathers = [bucket.update(factor) for bucket in self.buckets]
        for gather in gathers:
            gather.wait()
        self.backwards = 0


def train(bucket_size: int, steps: int = 20) -> float:
    """Fit a small network to a fixed function with every rank's own batches; return the last loss."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 1))
    zero = Zero2(model, bucket_size, lr=1e-2)
    torch.manual_seed(1 + dist.get_rank())
    for _ in range(steps):
        for _ in range(2):
            x = torch.randn(128, 8)
            loss = (model(x) - x.square().sum(1, keepdim=True)).square().mean()
            zero.backward(loss)
        zero.step()
    return loss.item()


def train_all() -> None:
    for bucket_size in (1, 1_000, 100_000):
        loss = train(bucket_size)
        if dist.get_rank() == 0:
            print(f"buckets of {bucket_size} elements: loss {loss:.6f}")


if __name__ == "__main__":
    run(train_all)
