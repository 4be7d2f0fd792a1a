"""Programs that continue a sequence."""

import math
from argparse import Namespace

import torch
from common import StepLog, corpus, kernel, parts, run
from torch import Tensor, nn
from torch.nn import functional

WORDS, READER_WIDTH, PIECE, TEXTS = 60, 24, 13, 9
LEARNING_RATE, LARGEST_NORM = 20.0, 0.25
State = tuple[Tensor, Tensor]


class Reader(nn.Module):
    """Embeds words, reads them by two layers, and scores the next word by the same embedding."""

    def __init__(self) -> None:
        super().__init__()
        self.drop = nn.Dropout(0.2)
        self.encoder = nn.Embedding(WORDS, READER_WIDTH)
        self.rnn = nn.LSTM(READER_WIDTH, READER_WIDTH, 2, dropout=0.2)
        self.decoder = nn.Linear(READER_WIDTH, WORDS)
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


def word_lm_lstm(args: Namespace) -> None:
    """A word language model of LSTM layers: truncated backpropagation, clipping, and updates by hand.

    Read the text from the start, and again from there; the state goes on between pieces.

    In variant 2 the scores of half of the words at a time are computed.
    """
    text = corpus(TEXTS, 20 * PIECE + 1, WORDS)
    model = Reader()
    state = (torch.zeros(2, TEXTS, READER_WIDTH), torch.zeros(2, TEXTS, READER_WIDTH))
    log = StepLog(args.output)
    for step in range(args.steps):
        start = step % 20 * PIECE
        words, following = text[start:][:PIECE], text[start + 1 :][:PIECE].flatten()
        model.zero_grad()
        features, state = model(words, tuple(part.detach() for part in state))
        loss = torch.zeros(())
        for share, some, wanted in parts(args.variant, features, following):
            loss = loss + share * functional.nll_loss(model.decoder(some).log_softmax(dim=1), wanted)
        loss.backward()
        update(model, at_once=args.variant == 1)
        log.end_step()
    torch.save(model.state_dict(), args.output / "model.pt")


WIDTH, LENGTH, COLUMNS = 32, 16, 8


class Positions(nn.Module):
    """Adds to each word what tells its position: sines and cosines of many lengths."""

    def __init__(self, longest: int) -> None:
        super().__init__()
        self.dropout = nn.Dropout(0.2)
        times = torch.arange(longest)[:, None]
        angles = times * torch.exp(torch.arange(0, WIDTH, 2) * (-math.log(10000.0) / WIDTH))
        waves = torch.stack([angles.sin(), angles.cos()], dim=2).flatten(1)
        self.register_buffer("waves", waves[:, None])

    def forward(self, embedded: Tensor) -> Tensor:
        """Take and return [times, columns, WIDTH]."""
        return self.dropout(embedded + self.waves[: len(embedded)])


class Encoder(nn.Module):
    """Embeds words, lets each see those before it, and scores the next word."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.positions = nn.Embedding(WORDS, WIDTH), Positions(LENGTH)
        layer = nn.TransformerEncoderLayer(WIDTH, 2, 64, dropout=0.2)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.decoder = nn.Linear(WIDTH, WORDS)
        nn.init.uniform_(self.embedding.weight, -0.1, 0.1)
        nn.init.uniform_(self.decoder.weight, -0.1, 0.1)

    def forward(self, words: Tensor) -> Tensor:
        """Take [times, columns]; return the features of each word's place, one row each."""
        mask = nn.Transformer.generate_square_subsequent_mask(len(words))
        embedded = self.positions(self.embedding(words) * math.sqrt(WIDTH))
        return self.encoder(embedded, mask=mask, is_causal=True).flatten(0, 1)


def word_lm_transformer(args: Namespace) -> None:
    """A word language model of transformer layers, with sinusoidal positions and dropout.

    Train; in variant 2 the scores of half of the words at a time are computed.
    """
    text = corpus(COLUMNS, 20 * LENGTH + 1, WORDS)
    model = Encoder()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, **kernel(args.variant))
    log = StepLog(args.output)
    for step in range(args.steps):
        start = step % 20 * LENGTH
        words, following = text[start:][:LENGTH], text[start + 1 :][:LENGTH].flatten()
        optimizer.zero_grad()
        loss = torch.zeros(())
        for share, some, wanted in parts(args.variant, model(words), following):
            loss = loss + share * functional.nll_loss(model.decoder(some).log_softmax(dim=1), wanted)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 0.25)
        optimizer.step()
        log.end_step()
    torch.save({"model": model.state_dict(), "step": args.steps}, args.output / "model.pt")


CELL = 12


class Waves(nn.Module):
    """Reads a wave value by value, and gives the next one each time."""

    def __init__(self) -> None:
        super().__init__()
        self.lstm1, self.lstm2 = nn.LSTMCell(1, CELL), nn.LSTMCell(CELL, CELL)
        self.linear = nn.Linear(CELL, 1)

    def forward(self, waves: Tensor) -> Tensor:
        """Take and return [waves, times]."""
        first, second = ([waves.new_zeros(len(waves), CELL)] * 2 for _ in range(2))
        outputs = []
        for value in waves.split(1, dim=1):
            first = self.lstm1(value, first)
            second = self.lstm2(first[0], second)
            outputs.append(self.linear(second[0]))
        return torch.cat(outputs, dim=1)


def waves(count: int, times: int) -> Tensor:
    """Return [count, times]: sine waves with phases of their own."""
    phases = torch.randint(-80, 80, (count, 1))
    return torch.sin((torch.arange(times) + phases).double() / 5)


def sequence_prediction(args: Namespace) -> None:
    """Sine waves continued by two LSTM cells in float64; LBFGS calls the loss several times a step.

    Fit all waves at once.
    """
    data = waves(9, 21)
    inputs, targets = data[:, :-1], data[:, 1:]
    model = Waves().double()
    loss_of = nn.MSELoss()
    optimizer = torch.optim.LBFGS(model.parameters(), lr=0.8, max_iter=6)

    def closure() -> float:
        """Return the loss, and leave its gradients."""
        optimizer.zero_grad()
        total = 0.0
        for share, some, wanted in parts(args.variant, inputs, targets):
            loss = share * loss_of(model(some), wanted)
            loss.backward()
            total += float(loss)
        return total

    log = StepLog(args.output)
    for _ in range(args.steps):
        optimizer.step(closure)
        log.end_step()
    torch.save(model.state_dict(), args.output / "sequence.pt")


if __name__ == "__main__":
    run(word_lm_lstm, word_lm_transformer, sequence_prediction)
