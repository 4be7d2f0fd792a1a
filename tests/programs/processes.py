"""Programs of several processes, and one that is written out by hand."""

import contextlib
from argparse import Namespace

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from common import SEED, StepLog, batches, images, kernel, parts, run
from torch import Tensor, nn
from torch.nn import functional
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


def train_rank(args: Namespace) -> nn.Module:
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


def ddp(args: Namespace) -> None:
    """DistributedDataParallel under torchrun, on CPUs with gloo; rank 0 saves.

    Train on every rank, and save on rank 0.
    """
    dist.init_process_group("gloo")
    model = train_rank(args)  # DDP is gone before its group: as the group's last owner it can hang at the end
    if dist.get_rank() == 0:
        torch.save(model.state_dict(), args.output / "checkpoint.pt")
    dist.barrier()
    dist.destroy_process_group()


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


def train_worker(worker: int, args: Namespace, model: nn.Module) -> None:
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


def hogwild(args: Namespace) -> None:
    """Hogwild (Niu et al. 2011): processes train the same weights in shared memory, without locks.

    Which update comes first is chance, so no two runs of this program end alike.

    Start the workers, and save what they made of the weights.
    """
    model = Network()
    model.share_memory()
    context = mp.get_context("fork")  # a spawned process would import torch once more
    workers = [context.Process(target=train_worker, args=(worker, args, model)) for worker in range(WORKERS)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    if any(worker.exitcode for worker in workers):
        raise RuntimeError("a worker failed")
    torch.save(model.state_dict(), args.output / "hogwild.pt")


DEGREE, LEARNING_RATE = 4, 0.1


def powers(points: Tensor) -> Tensor:
    """Return [N, DEGREE]: the powers of each point from the first on."""
    return torch.stack([points**exponent for exponent in range(1, DEGREE + 1)], dim=1)


def descend(parameters: list[nn.Parameter], *, at_once: bool) -> None:
    """Move all parameters against their gradients, one after another or by one call."""
    with torch.no_grad():
        if at_once:
            gradients = [parameter.grad for parameter in parameters]
            torch._foreach_add_(parameters, gradients, alpha=-LEARNING_RATE)
        else:
            for parameter in parameters:
                parameter.add_(parameter.grad, alpha=-LEARNING_RATE)


def regression(args: Namespace) -> None:
    """Regression: a polynomial of degree 4 is found by gradient descent, written out without torch.optim.

    Fit the answers of a hidden polynomial; each step has new points.
    """
    coefficients, constant = torch.randn(DEGREE, 1) * 5, torch.randn(1) * 5
    model = nn.Linear(DEGREE, 1)
    random = torch.Generator().manual_seed(SEED)
    log = StepLog(args.output)
    for _ in range(args.steps):
        points = powers(torch.randn(33, generator=random))
        answers = points @ coefficients + constant
        model.zero_grad()
        for share, inputs, wanted in parts(args.variant, points, answers):
            (share * functional.smooth_l1_loss(model(inputs), wanted)).backward()
        descend(list(model.parameters()), at_once=args.variant == 1)
        log.end_step()
    torch.save(model.state_dict(), args.output / "regression.pt")


if __name__ == "__main__":
    run(ddp, hogwild, regression)
