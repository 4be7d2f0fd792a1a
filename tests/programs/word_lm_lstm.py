"""A word language model of LSTM layers: truncated backpropagation, clipping, and updates by hand."""

import torch
from common import StepLog, arguments, corpus, parts
from torch import Tensor, nn
from torch.nn import functional

WORDS, WIDTH, LENGTH, COLUMNS = 60, 24, 13, 9
LEARNING_RATE, LARGEST_NORM = 20.0, 0.25
State = tuple[Tensor, Tensor]


class Network(nn.Module):
    """Embeds words, reads them by two layers, and scores the next word by the same embedding."""

    def __init__(self) -> None:
        super().__init__()
        self.drop = nn.Dropout(0.2)
        self.encoder = nn.Embedding(WORDS, WIDTH)
        self.rnn = nn.LSTM(WIDTH, WIDTH, 2, dropout=0.2)
        self.decoder = nn.Linear(WIDTH, WORDS)
        self.decoder.weight = self.encoder.weight
        nn.init.uniform_(self.encoder.weight, -0.1, 0.1)
        nn.init.zeros_(self.decoder.bias)

    def forward(self, words: Tensor, state: State) -> tuple[Tensor, State]:
        """Take [times, columns]; return the features of each word, one row each, and the new state."""
        output, state = self.rnn(self.drop(self.encoder(words)), state)
        return self.drop(output).flatten(0, 1), state


def update(model: nn.Module, *, at_once: bool) -> None:
    """Clip the gradients, and move the weights against them."""
    nn.utils.clip_grad_norm_(model.parameters(), LARGEST_NORM, foreach=at_once)
    weights = list(model.parameters())
    with torch.no_grad():
        if at_once:
            torch._foreach_add_(weights, [weight.grad for weight in weights], alpha=-LEARNING_RATE)
        else:
            for weight in weights:
                weight.add_(weight.grad, alpha=-LEARNING_RATE)


def main() -> None:
    """Read the text from the start, and again from there; the state goes on between pieces.

    In variant 2 the scores of half of the words at a time are computed.
    """
    args = arguments(__doc__)
    text = corpus(COLUMNS, 20 * LENGTH + 1, WORDS)
    model = Network()
    state = (torch.zeros(2, COLUMNS, WIDTH), torch.zeros(2, COLUMNS, WIDTH))
    log = StepLog(args.output)
    for step in range(args.steps):
        start = step % 20 * LENGTH
        words, following = text[start:][:LENGTH], text[start + 1 :][:LENGTH].flatten()
        model.zero_grad()
        features, state = model(words, tuple(part.detach() for part in state))
        loss = torch.zeros(())
        for share, some, wanted in parts(args.variant, features, following):
            loss = loss + share * functional.nll_loss(model.decoder(some).log_softmax(dim=1), wanted)
        loss.backward()
        update(model, at_once=args.variant == 1)
        log.end_step()
    torch.save(model.state_dict(), args.output / "model.pt")


if __name__ == "__main__":
    main()
