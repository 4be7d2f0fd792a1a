"""Recurrent models: torch's own layers and cells written by hand, over tokens, series and frames."""

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.utils.rnn import pack_padded_sequence

from tests.zoo import sampling


class TanhRnn(nn.Module):
    """torch's RNN with tanh on the adding problem: the sum of the two marked numbers (MSE)."""

    def __init__(self, width: int = 16) -> None:
        super().__init__()
        self.rnn = nn.RNN(2, width, batch_first=True)
        self.outlet = nn.Linear(width, 1)

    def make_batch(self, generator: torch.Generator, batch_size: int, length: int) -> tuple[Tensor, ...]:
        numbers = sampling.uniform(generator, batch_size, length)
        marked = sampling.uniform(generator, batch_size, length).argsort(dim=1) < 2
        return torch.stack([numbers, marked.float()], dim=2), (numbers * marked).sum(dim=1)

    def forward(self, series: Tensor, sums: Tensor) -> Tensor:
        return functional.mse_loss(self.outlet(self.rnn(series)[0][:, -1]).squeeze(1), sums)


class LstmLanguageModel(nn.Module):
    """Two LSTM layers with dropout between them, tied weights, activation penalties as in AWD-LSTM."""

    def __init__(self, vocabulary: int = 80, width: int = 16) -> None:
        super().__init__()
        self.vocabulary = vocabulary
        self.words = nn.Embedding(vocabulary, width)
        nn.init.uniform_(self.words.weight, -0.1, 0.1)
        self.lstm = nn.LSTM(width, width, 2, dropout=0.2, batch_first=True)
        self.outlet = nn.Linear(width, vocabulary)
        self.outlet.weight = self.words.weight

    def make_batch(self, generator: torch.Generator, batch_size: int, length: int) -> tuple[Tensor, ...]:
        return (sampling.tokens(generator, self.vocabulary, batch_size, length + 1),)

    def forward(self, words: Tensor) -> Tensor:
        hidden = self.lstm(functional.dropout(self.words(words[:, :-1]), 0.1, self.training))[0]
        loss = functional.cross_entropy(self.outlet(hidden).flatten(0, 1), words[:, 1:].flatten())
        return loss + 0.02 * hidden.square().mean() + 0.01 * hidden.diff(dim=1).square().mean()


class PackedGru(nn.Module):
    """A GRU over sequences of unequal lengths, packed; the last state, and a hinge loss."""

    def __init__(self, vocabulary: int = 50, width: int = 12) -> None:
        super().__init__()
        self.vocabulary = vocabulary
        self.words = nn.Embedding(vocabulary, width, padding_idx=0)
        self.gru = nn.GRU(width, width, batch_first=True)
        self.outlet = nn.Linear(width, 1)

    def make_batch(self, generator: torch.Generator, batch_size: int, length: int) -> tuple[Tensor, ...]:
        words = sampling.tokens(generator, self.vocabulary, batch_size, length)
        lengths = 2 + sampling.whole(generator, length - 1, batch_size)
        words = words * (torch.arange(length) < lengths.unsqueeze(1))
        return words, lengths, torch.where(words.sum(dim=1) % 5 < 3, 1.0, -1.0)

    def forward(self, words: Tensor, lengths: Tensor, signs: Tensor) -> Tensor:
        packed = pack_padded_sequence(
            self.words(words), lengths.cpu(), batch_first=True, enforce_sorted=False
        )
        return functional.relu(1 - signs * self.outlet(self.gru(packed)[1][-1]).squeeze(1)).mean()


class BidirectionalLstm(nn.Module):
    """Tags of words, of which rare ones weigh more."""

    def __init__(self, vocabulary: int = 60, width: int = 12, tags: int = 4) -> None:
        super().__init__()
        self.vocabulary = vocabulary
        self.tags = tags
        self.words = nn.Embedding(vocabulary, width)
        self.lstm = nn.LSTM(width, width, bidirectional=True, batch_first=True)
        self.outlet = nn.Linear(2 * width, tags)

    def make_batch(self, generator: torch.Generator, batch_size: int, length: int) -> tuple[Tensor, ...]:
        words = sampling.tokens(generator, self.vocabulary, batch_size, length)
        return words, (words + words.roll(1, dims=1)) % self.tags

    def forward(self, words: Tensor, tags: Tensor) -> Tensor:
        logits = self.outlet(self.lstm(self.words(words))[0])
        weights = torch.arange(1, self.tags + 1, device=logits.device).to(logits.dtype)
        return functional.cross_entropy(logits.flatten(0, 1), tags.flatten(), weight=weights)


class LstmCrf(nn.Module):
    """A bidirectional LSTM with a conditional random field:
    scores of tag sequences by a recursion in logs.
    """

    def __init__(self, vocabulary: int = 40, width: int = 8, tags: int = 3) -> None:
        super().__init__()
        self.vocabulary = vocabulary
        self.tags = tags
        self.words = nn.Embedding(vocabulary, width)
        self.lstm = nn.LSTM(width, width, bidirectional=True, batch_first=True)
        self.emissions = nn.Linear(2 * width, tags)
        self.start = nn.Parameter(torch.zeros(tags))
        self.transitions = nn.Parameter(torch.zeros(tags, tags))

    def make_batch(self, generator: torch.Generator, batch_size: int, length: int) -> tuple[Tensor, ...]:
        words = sampling.tokens(generator, self.vocabulary, batch_size, length)
        return words, (words + words.roll(1, dims=1)) % self.tags

    def forward(self, words: Tensor, tags: Tensor) -> Tensor:
        emissions = self.emissions(self.lstm(self.words(words))[0])
        total = self.start + emissions[:, 0]
        for position in range(1, words.shape[1]):
            total = torch.logsumexp(total.unsqueeze(2) + self.transitions, dim=1) + emissions[:, position]
        score = emissions.gather(2, tags.unsqueeze(2)).sum(dim=(1, 2)) + self.start[tags[:, 0]]
        score = score + self.transitions[tags[:, :-1], tags[:, 1:]].sum(dim=1)
        return (torch.logsumexp(total, dim=1) - score).mean()


class ConnectionistLstm(nn.Module):
    """As speech recognition: convolution over frames, bidirectional LSTM,
    connectionist temporal classification.
    """

    def __init__(self, features: int = 6, width: int = 12, symbols: int = 5) -> None:
        super().__init__()
        self.features = features
        self.symbols = symbols
        self.frames = nn.Conv1d(features, width, 3, padding=1)
        self.norm = nn.BatchNorm1d(width)
        self.lstm = nn.LSTM(width, width, bidirectional=True, batch_first=True)
        self.outlet = nn.Linear(2 * width, symbols)

    def make_batch(self, generator: torch.Generator, batch_size: int, length: int) -> tuple[Tensor, ...]:
        symbols = 1 + sampling.whole(generator, self.symbols - 1, batch_size, length // 4)
        spoken = functional.one_hot(symbols, self.features).float().repeat_interleave(4, dim=1)
        spoken = functional.pad(spoken, (0, 0, 0, length - spoken.shape[1]))
        return spoken + 0.3 * sampling.normal(generator, batch_size, length, self.features), symbols

    def forward(self, frames: Tensor, symbols: Tensor) -> Tensor:
        hidden = functional.hardtanh(self.norm(self.frames(frames.transpose(1, 2))), 0, 20).transpose(1, 2)
        logits = self.outlet(self.lstm(hidden)[0])
        logits = logits.to(torch.promote_types(logits.dtype, torch.float32))  # the loss has no bfloat16 form
        scores = functional.log_softmax(logits, dim=2).transpose(0, 1)
        batch, targets = symbols.shape
        lengths = torch.full((batch,), len(scores), device=symbols.device)
        return functional.ctc_loss(
            scores, symbols, lengths, torch.full_like(lengths, targets), zero_infinity=True
        )


class LstmAttention(nn.Module):
    """Additive attention of the last state over all states of an LSTM."""

    def __init__(self, features: int = 4, width: int = 12, classes: int = 3) -> None:
        super().__init__()
        self.features = features
        self.classes = classes
        self.lstm = nn.LSTM(features, width, batch_first=True)
        self.key = nn.Linear(width, width)
        self.query = nn.Linear(width, width, bias=False)
        self.score = nn.Linear(width, 1, bias=False)
        self.classifier = nn.Linear(2 * width, classes)

    def make_batch(self, generator: torch.Generator, batch_size: int, length: int) -> tuple[Tensor, ...]:
        series = sampling.normal(generator, batch_size, length, self.features)
        return series, series[..., 0].argmax(dim=1) * self.classes // length

    def forward(self, series: Tensor, labels: Tensor) -> Tensor:
        states, (last, _) = self.lstm(series)
        scores = self.score(torch.tanh(self.key(states) + self.query(last[-1]).unsqueeze(1)))
        context = (torch.softmax(scores, dim=1) * states).sum(dim=1)
        return functional.cross_entropy(self.classifier(torch.cat([context, last[-1]], dim=1)), labels)


class QuantileGru(nn.Module):
    """A GRU cell in a loop from a learned first state; quantiles of the next value (pinball loss)."""

    def __init__(self, width: int = 12, quantiles: tuple[float, ...] = (0.1, 0.5, 0.9)) -> None:
        super().__init__()
        self.quantiles = quantiles
        self.first = nn.Parameter(torch.zeros(1, width))
        self.cell = nn.GRUCell(1, width)
        self.outlet = nn.Linear(width, len(quantiles))

    def make_batch(self, generator: torch.Generator, batch_size: int, length: int) -> tuple[Tensor, ...]:
        phases = 6 * sampling.uniform(generator, batch_size, 1)
        noise = sampling.normal(generator, batch_size, length + 1)
        return (torch.sin(phases + 0.7 * torch.arange(length + 1)) + 0.2 * noise,)

    def forward(self, series: Tensor) -> Tensor:
        state = self.first.expand(len(series), -1)
        quantiles = torch.tensor(self.quantiles, device=series.device).to(series.dtype)
        losses = []
        for position in range(series.shape[1] - 1):
            state = self.cell(series[:, position : position + 1], state)
            error = series[:, position + 1 : position + 2] - self.outlet(state)
            losses.append(torch.maximum(quantiles * error, (quantiles - 1) * error).mean())
        return torch.stack(losses).mean()


class IndependentRnn(nn.Module):
    """Neurons that see only themselves in time, with ReLU; BatchNorm over batch and time (as IndRNN)."""

    def __init__(self, features: int = 3, width: int = 16, classes: int = 4) -> None:
        super().__init__()
        self.features = features
        self.classes = classes
        self.inlet = nn.Linear(features, width)
        self.norm = nn.BatchNorm1d(width)
        self.recurrence = nn.Parameter(torch.rand(width))
        self.outlet = nn.Linear(width, classes)

    def make_batch(self, generator: torch.Generator, batch_size: int, length: int) -> tuple[Tensor, ...]:
        series = sampling.normal(generator, batch_size, length, self.features)
        return series, (series[..., 0].cumsum(dim=1).abs().amax(dim=1) / 2).long().clamp(max=self.classes - 1)

    def forward(self, series: Tensor, labels: Tensor) -> Tensor:
        steps = self.norm(self.inlet(series).transpose(1, 2)).unbind(dim=2)
        state = torch.zeros_like(steps[0])
        for step in steps:
            state = functional.relu(step + self.recurrence.clamp(-1, 1) * state)
        return functional.cross_entropy(self.outlet(state), labels)


class ConvLstm(nn.Module):
    """A convolutional LSTM over frames with peepholes;
    the next frame of a moving dot (binary cross entropy).
    """

    def __init__(self, width: int = 4, side: int = 6) -> None:
        super().__init__()
        self.side = side
        self.gates = nn.Conv2d(1 + width, 4 * width, 3, padding=1)
        self.peepholes = nn.Parameter(torch.zeros(3, width, side, side))
        self.outlet = nn.Conv2d(width, 1, 1)

    def make_batch(self, generator: torch.Generator, batch_size: int, length: int) -> tuple[Tensor, ...]:
        starts = sampling.whole(generator, self.side**2, batch_size, 1)
        steps = 1 + sampling.whole(generator, 3, batch_size, 1)
        cells = (starts + steps * torch.arange(6)) % self.side**2
        return (functional.one_hot(cells, self.side**2).float().unflatten(2, (1, self.side, self.side)),)

    def forward(self, frames: Tensor) -> Tensor:
        hidden = torch.zeros_like(frames[:, 0]).expand(-1, self.peepholes.shape[1], -1, -1)
        cell = torch.zeros_like(hidden)
        losses = []
        for frame, following in zip(frames[:, :-1].unbind(1), frames[:, 1:].unbind(1), strict=True):
            inlet, forget, outlet, value = self.gates(torch.cat([frame, hidden], dim=1)).chunk(4, dim=1)
            kept = torch.sigmoid(forget + 1 + self.peepholes[0] * cell) * cell
            cell = kept + torch.sigmoid(inlet + self.peepholes[1] * cell) * torch.tanh(value)
            hidden = torch.sigmoid(outlet + self.peepholes[2] * cell) * torch.tanh(cell)
            losses.append(functional.binary_cross_entropy_with_logits(self.outlet(hidden), following))
        return torch.stack(losses).mean()
