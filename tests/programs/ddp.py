"""DistributedDataParallel under torchrun, on CPUs with gloo; rank 0 saves."""

import argparse
import contextlib

import torch
import torch.distributed as dist
from common import SEED, StepLog, arguments, kernel, parts
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset


class Trainer:
    """Trains a model on this rank's share of the data."""

    def __init__(self, variant: int) -> None:
        self._variant = variant
        layers = [nn.Linear(20, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 5)]
        self.model = nn.Sequential(*layers)
        self._ddp = DistributedDataParallel(self.model)
        self._optimizer = torch.optim.SGD(self._ddp.parameters(), lr=0.05, momentum=0.9, **kernel(variant))

    def step(self, inputs: torch.Tensor, labels: torch.Tensor) -> None:
        """Update the weights; only the last backward pass of a step exchanges gradients."""
        self._optimizer.zero_grad()
        split = list(parts(self._variant, inputs, labels))
        for number, (share, rows, classes) in enumerate(split, 1):
            with contextlib.nullcontext() if number == len(split) else self._ddp.no_sync():
                (share * nn.functional.cross_entropy(self._ddp(rows), classes)).backward()
        self._optimizer.step()


def train(args: argparse.Namespace) -> nn.Module:
    """Classify points by a teacher's answer; return the trained model."""
    random = torch.Generator().manual_seed(SEED)
    points = torch.randn(512, 20, generator=random)
    classes = (points @ torch.randn(20, 5, generator=random)).argmax(dim=1)
    data = TensorDataset(points, classes)
    sampler = DistributedSampler(data, seed=SEED)
    loader = DataLoader(data, batch_size=32, sampler=sampler)
    trainer = Trainer(args.variant)
    log = StepLog(args.output)
    done = epoch = 0
    while done < args.steps:
        sampler.set_epoch(epoch)
        for inputs, labels in list(loader)[: args.steps - done]:
            trainer.step(inputs, labels)
            done += 1
            if dist.get_rank() == 0:
                log.end_step()
        epoch += 1
    return trainer.model


def main() -> None:
    """Train on every rank, and save on rank 0."""
    args = arguments(__doc__)
    dist.init_process_group("gloo")
    model = train(args)  # DDP is gone before its group: as the group's last owner it can hang at the end
    if dist.get_rank() == 0:
        torch.save(model.state_dict(), args.output / "checkpoint.pt")
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
