"""Programs that name what is in a picture."""

from argparse import Namespace
from itertools import pairwise

import torch
from common import SEED, StepLog, batches, images, kernel, parts, run
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.nn import functional


class Convolutions(nn.Module):
    """Two convolutions and two linear layers."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.conv2 = nn.Conv2d(1, 8, 3), nn.Conv2d(8, 16, 3)
        self.dropout1, self.dropout2 = nn.Dropout(0.25), nn.Dropout(0.5)
        self.fc1, self.fc2 = nn.Linear(256, 32), nn.Linear(32, 10)

    def forward(self, pictures: Tensor) -> Tensor:
        """Return the logarithm of each class's probability."""
        features = functional.max_pool2d(self.conv2(self.conv1(pictures).relu()).relu(), 2)
        hidden = self.fc1(self.dropout1(features).flatten(1)).relu()
        return functional.log_softmax(self.fc2(self.dropout2(hidden)), dim=1)


def evaluate(model: nn.Module, pictures: Tensor, labels: Tensor) -> float:
    """Return the share of the pictures that the model names rightly."""
    model.eval()
    with torch.no_grad():
        right = model(pictures).argmax(dim=1) == labels
    model.train()
    return float(right.float().mean())


def mnist(args: Namespace) -> None:
    """Digits: convolutions, dropout, max pooling and log_softmax; SGD with momentum and a schedule.

    Train, and evaluate after each epoch.
    """
    if args.variant == 2:  # the masks of dropout follow the layout, so channels_last is another training
        torch.backends.mkldnn.set_flags(False)
    pictures, labels = images(640, 12)
    model = Convolutions()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.5, **kernel(args.variant))
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=1, gamma=0.7)
    log = StepLog(args.output)
    for step, (batch, classes) in enumerate(batches(64, args.steps, pictures[128:], labels[128:]), 1):
        optimizer.zero_grad()
        functional.nll_loss(model(batch), classes).backward()
        optimizer.step()
        log.end_step()
        if step % 8 == 0:
            print(f"epoch {step // 8}: {evaluate(model, pictures[:128], labels[:128]):.1%} right")
            scheduler.step()
    torch.save(model.state_dict(), args.output / "mnist_cnn.pt")


SIDE = 12


class RowReader(nn.Module):
    """Reads the rows of an image in order, and decides after the last one."""

    def __init__(self, *, time_first: bool) -> None:
        super().__init__()
        self._time_first = time_first
        self.rnn = nn.LSTM(SIDE, 32, batch_first=not time_first)
        self.norm = nn.BatchNorm1d(32)
        self.hidden, self.head = nn.Linear(32, 24), nn.Linear(24, 10)

    def forward(self, pictures: Tensor) -> Tensor:
        """Return the logarithm of each class's probability."""
        rows = pictures.reshape(-1, SIDE, SIDE)
        if self._time_first:
            last = self.rnn(rows.transpose(0, 1).contiguous())[0][-1]
        else:
            last = self.rnn(rows)[0][:, -1]
        features = functional.dropout(self.norm(last), 0.25, self.training)
        hidden = functional.dropout(self.hidden(features).relu(), 0.5, self.training)
        return self.head(hidden).log_softmax(dim=1)


def mnist_rnn(args: Namespace) -> None:
    """Digits read row by row: an LSTM, BatchNorm and dropout over images, trained by Adadelta.

    Train for some epochs, each with a lower learning rate.
    """
    pictures, labels = images(512, SIDE)
    model = RowReader(time_first=args.variant == 2)
    if args.variant == 2:  # the input's layout alone leaves the bits as they are
        torch.backends.mkldnn.set_flags(False)
    optimizer = torch.optim.Adadelta(model.parameters(), lr=0.1, **kernel(args.variant, "foreach"))
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=1, gamma=0.7)
    log = StepLog(args.output)
    for step, (batch, classes) in enumerate(batches(64, args.steps, pictures, labels), 1):
        optimizer.zero_grad()
        functional.nll_loss(model(batch), classes).backward()
        optimizer.step()
        if step % 8 == 0:
            scheduler.step()
        log.end_step()
    torch.save(model.state_dict(), args.output / "mnist_rnn.pt")


class Siamese(nn.Module):
    """A convolutional trunk with BatchNorm, applied to each image, and a head over both features."""

    def __init__(self) -> None:
        super().__init__()
        self.trunk = nn.Sequential(
            nn.Conv2d(1, 8, 3, 1, 1, bias=False),
            nn.BatchNorm2d(8),
            nn.ReLU(),
            nn.Conv2d(8, 16, 3, 2, 1, bias=False),
            nn.BatchNorm2d(16),
            nn.ReLU(),
            nn.AdaptiveAvgPool2d(2),
        )
        self.head = nn.Sequential(nn.Linear(128, 32), nn.ReLU(), nn.Linear(32, 1), nn.Sigmoid())
        self.head.apply(self._initialize)

    @staticmethod
    def _initialize(module: nn.Module) -> None:
        if isinstance(module, nn.Linear):
            nn.init.xavier_uniform_(module.weight)
            nn.init.constant_(module.bias, 0.01)

    def forward(self, one: Tensor, other: Tensor) -> Tensor:
        """Return [B]: how probable it is that the classes are equal."""
        features = [self.trunk(pictures).flatten(1) for pictures in (one, other)]
        return self.head(torch.cat(features, dim=1))[:, 0]


def pairs() -> tuple[Tensor, Tensor, Tensor]:
    """Return two sets of images, and 1 where their classes are equal: in half of the pairs."""
    random = torch.Generator().manual_seed(SEED)
    pictures, labels = images(384, 12)
    partners = torch.randint(len(labels), labels.shape, generator=random)
    for row in range(0, len(labels), 2):
        alike = (labels == labels[row]).nonzero()[:, 0]
        partners[row] = alike[torch.randint(len(alike), (1,), generator=random)]
    return pictures, pictures[partners], (labels == labels[partners]).to(pictures.dtype)


def siamese(args: Namespace) -> None:
    """A siamese network: one trunk sees two images, and a head says whether their classes are equal.

    Train in one layout or the other.
    """
    layout = torch.channels_last if args.variant == 2 else torch.contiguous_format
    model = Siamese().to(memory_format=layout)
    optimizer = torch.optim.Adadelta(model.parameters(), lr=1.0, **kernel(args.variant, "foreach"))
    loss_of = nn.BCELoss()
    log = StepLog(args.output)
    for one, other, equal in batches(48, args.steps, *pairs()):
        optimizer.zero_grad()
        guess = model(one.contiguous(memory_format=layout), other.contiguous(memory_format=layout))
        loss_of(guess, equal).backward()
        optimizer.step()
        log.end_step()
    state = {name: value.contiguous() for name, value in model.state_dict().items()}
    save_file(state, args.output / "siamese.safetensors")


STEM = 8


class Block(nn.Module):
    """Two convolutions beside a short cut."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(outputs)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(outputs)
        self.downsample = nn.Sequential()
        if stride != 1 or inputs != outputs:
            self.downsample = nn.Sequential(
                nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs)
            )

    def forward(self, features: Tensor) -> Tensor:
        """Take and return [B, C, H, W]."""
        hidden = self.bn1(self.conv1(features)).relu()
        return (self.bn2(self.conv2(hidden)) + self.downsample(features)).relu()


class ResNet18(nn.Module):
    """A stem, four layers of two blocks, and a linear head."""

    def __init__(self, classes: int) -> None:
        super().__init__()
        self.stem = nn.Sequential(
            nn.Conv2d(3, STEM, 7, 2, 3, bias=False), nn.BatchNorm2d(STEM), nn.ReLU(), nn.MaxPool2d(3, 2, 1)
        )
        widths = [STEM, STEM, 2 * STEM, 4 * STEM, 8 * STEM]
        self.layers = nn.ModuleList(
            nn.Sequential(Block(before, after, 1 if before == after else 2), Block(after, after, 1))
            for before, after in pairwise(widths)
        )
        self.fc = nn.Linear(widths[-1], classes)

    def forward(self, pictures: Tensor) -> Tensor:
        """Return a score for each class."""
        features = self.stem(pictures)
        for layer in self.layers:
            features = layer(features)
        return self.fc(features.mean(dim=(2, 3)))


def resnet18(args: Namespace) -> None:
    """ResNet-18 (He et al. 2016), an eighth as wide, with BatchNorm; SGD with momentum and a schedule.

    Train in one layout or the other.
    """
    layout = torch.channels_last if args.variant == 2 else torch.contiguous_format
    model = ResNet18(10).to(memory_format=layout)
    pictures, labels = images(256, 32, channels=3)
    sgd = {"lr": 0.02, "momentum": 0.9, "weight_decay": 1e-4, **kernel(args.variant)}
    optimizer = torch.optim.SGD(model.parameters(), **sgd)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=30, gamma=0.1)
    log = StepLog(args.output)
    for batch, classes in batches(32, args.steps, pictures, labels):
        scores = model(batch.contiguous(memory_format=layout))
        optimizer.zero_grad()
        nn.functional.cross_entropy(scores, classes).backward()
        optimizer.step()
        scheduler.step()
        log.end_step()
    state = {"arch": "resnet18", "state_dict": model.state_dict(), "optimizer": optimizer.state_dict()}
    torch.save(state, args.output / "checkpoint.pth")


def perceptron(inputs: int, width: int, outputs: int, layers: int) -> nn.Sequential:
    """Return linear layers with ReLU between them."""
    sizes = [inputs, *[width] * (layers - 1), outputs]
    stack: list[nn.Module] = []
    for before, after in pairwise(sizes):
        stack += [nn.Linear(before, after), nn.ReLU()]
    return nn.Sequential(*stack[:-1])


def autocast(args: Namespace) -> None:
    """Mixed precision: a perceptron whose forward pass runs in bfloat16 under torch.autocast.

    Fit random targets of a teacher.
    """
    model = perceptron(64, 128, 16, layers=3)
    inputs = torch.randn(512, 64)
    targets = torch.tanh(inputs @ torch.randn(64, 16) / 8)
    loss_of = nn.MSELoss()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, **kernel(args.variant))

    log = StepLog(args.output)
    for batch, wanted in batches(64, args.steps, inputs, targets):
        optimizer.zero_grad(set_to_none=True)
        for share, rows, expected in parts(args.variant, batch, wanted):
            with torch.autocast("cpu", dtype=torch.bfloat16):
                outputs = model(rows)
                loss = loss_of(outputs, expected)
            (share * loss).backward()
        optimizer.step()
        log.end_step()
    save_file(model.state_dict(), args.output / "model.safetensors")


if __name__ == "__main__":
    run(mnist, mnist_rnn, siamese, resnet18, autocast)
