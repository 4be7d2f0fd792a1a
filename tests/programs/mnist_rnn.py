"""Digits read row by row: an LSTM, BatchNorm and dropout over images, trained by Adadelta."""

import torch
from common import StepLog, arguments, batches, images, kernel
from torch import Tensor, nn
from torch.nn import functional

SIDE = 12


class Network(nn.Module):
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


def main() -> None:
    """Train for some epochs, each with a lower learning rate."""
    args = arguments(__doc__)
    pictures, labels = images(512, SIDE)
    model = Network(time_first=args.variant == 2)
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


if __name__ == "__main__":
    main()
