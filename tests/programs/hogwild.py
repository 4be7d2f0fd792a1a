"""Hogwild (Niu et al. 2011): processes train the same weights in shared memory, without locks.

Which update comes first is chance, so no two runs of this program end alike.
"""

import argparse

import torch
import torch.multiprocessing as mp
from common import SEED, StepLog, arguments, batches, images, kernel
from torch import nn
from torch.nn import functional

WORKERS = 4


class Network(nn.Module):
    """A convolution and two linear layers."""

    def __init__(self) -> None:
        super().__init__()
        self.convolution = nn.Conv2d(1, 8, 3)
        self.hidden, self.head = nn.Linear(200, 32), nn.Linear(32, 10)

    def forward(self, pictures: torch.Tensor) -> torch.Tensor:
        """Return the logarithm of each class's probability."""
        features = functional.max_pool2d(self.convolution(pictures).relu(), 2).flatten(1)
        hidden = functional.dropout(self.hidden(features).relu(), training=self.training)
        return self.head(hidden).log_softmax(dim=1)


def train(worker: int, args: argparse.Namespace, model: nn.Module) -> None:
    """Train the shared weights on this worker's pictures."""
    torch.manual_seed(SEED + worker)
    torch.set_num_threads(1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, **kernel(args.variant, "foreach"))
    pictures, labels = images(512, 12)
    own = slice(worker, None, WORKERS)
    log = StepLog(args.output)
    for batch, classes in batches(32, args.steps, pictures[own], labels[own]):
        optimizer.zero_grad()
        functional.nll_loss(model(batch), classes).backward()
        optimizer.step()
        if worker == 0:
            log.end_step()


def main() -> None:
    """Start the workers, and save what they made of the weights."""
    args = arguments(__doc__)
    model = Network()
    model.share_memory()
    context = mp.get_context("fork")  # a spawned process would import torch once more
    workers = [context.Process(target=train, args=(worker, args, model)) for worker in range(WORKERS)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    if any(worker.exitcode for worker in workers):
        raise RuntimeError("a worker failed")
    torch.save(model.state_dict(), args.output / "hogwild.pt")


if __name__ == "__main__":
    main()
