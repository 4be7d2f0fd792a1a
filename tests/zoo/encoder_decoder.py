"""Encoders with decoders: sequences that become other sequences."""

import torch
from torch import Tensor, nn
from torch.nn import functional

from tests.zoo import sampling

PADDING = 0
START = 1


class Translation(nn.Module):
    """Base: the target is the source, reversed and with other words, both padded;
    `logits` by teacher forcing.
    """

    def __init__(self, vocabulary: int = 40) -> None:
        super().__init__()
        self.vocabulary = vocabulary

    def make_batch(self, generator: torch.Generator, batch_size: int, length: int) -> tuple[Tensor, ...]:
        source = sampling.tokens(generator, self.vocabulary - 2, batch_size, length) + 2
        lengths = 2 + sampling.whole(generator, length - 1, batch_size, 1)
        padded = torch.arange(length) >= lengths
        target = (source.flip(1) * 7) % (self.vocabulary - 2) + 2
        return source.masked_fill(padded, PADDING), target.masked_fill(padded, PADDING)

    def forward(self, source: Tensor, target: Tensor) -> Tensor:
        before = functional.pad(target, (1, -1), value=START)
        logits = self.logits(source, before)
        return functional.cross_entropy(
            logits.flatten(0, 1), target.flatten(), ignore_index=PADDING, label_smoothing=0.1
        )

    def logits(self, source: Tensor, before: Tensor) -> Tensor:
        raise NotImplementedError


class TransformerSeq2Seq(Translation):
    """torch's nn.Transformer with dropout, sinusoidal positions and padding masks;
    embeddings and outlet are tied.
    """

    def __init__(self, width: int = 12) -> None:
        super().__init__()
        self.width = width
        self.words = nn.Embedding(self.vocabulary, width, padding_idx=PADDING)
        self.transformer = nn.Transformer(width, 2, 1, 1, 24, dropout=0.1, batch_first=True)
        self.bias = nn.Parameter(torch.zeros(self.vocabulary))

    def _embedded(self, words: Tensor) -> Tensor:
        weight = self.words.weight
        rates = 10000 ** (-torch.arange(0, self.width, 2, device=words.device) / self.width)
        angles = torch.arange(words.shape[1], device=words.device).unsqueeze(1) * rates
        positions = torch.cat([torch.sin(angles), torch.cos(angles)], dim=1).to(weight.dtype)
        return self.words(words) * self.width**0.5 + positions

    def logits(self, source: Tensor, before: Tensor) -> Tensor:
        length = before.shape[1]
        future = torch.ones(length, length, dtype=torch.bool, device=before.device).triu(1)
        padded = source == PADDING
        hidden = self.transformer(
            *(self._embedded(source), self._embedded(before)),
            tgt_mask=future,
            src_key_padding_mask=padded,
            memory_key_padding_mask=padded,
        )
        return functional.linear(hidden, self.words.weight, self.bias)


class GruSeq2Seq(Translation):
    """The last state of one GRU starts the other."""

    def __init__(self, width: int = 16) -> None:
        super().__init__()
        self.source_words = nn.Embedding(self.vocabulary, width)
        self.target_words = nn.Embedding(self.vocabulary, width)
        self.encoder = nn.GRU(width, width, batch_first=True)
        self.decoder = nn.GRU(width, width, batch_first=True)
        self.outlet = nn.Linear(width, self.vocabulary)

    def logits(self, source: Tensor, before: Tensor) -> Tensor:
        state = self.encoder(self.source_words(source))[1]
        return self.outlet(self.decoder(self.target_words(before), state)[0])


class AttentionSeq2Seq(Translation):
    """LSTM cells with attention and input feeding; a fifth of the inputs are the model's own best words."""

    def __init__(self, width: int = 12) -> None:
        super().__init__()
        self.words = nn.Embedding(self.vocabulary, width)
        self.encoder = nn.LSTM(width, width // 2, bidirectional=True, batch_first=True)
        self.cell = nn.LSTMCell(2 * width, width)
        self.align = nn.Linear(width, width, bias=False)
        self.combine = nn.Linear(2 * width, width, bias=False)
        self.outlet = nn.Linear(width, self.vocabulary)

    def logits(self, source: Tensor, before: Tensor) -> Tensor:
        memory = self.encoder(self.words(source))[0]
        padded = source == PADDING
        attended = torch.zeros_like(memory[:, 0])
        state = (attended, attended)
        own = torch.rand(before.shape, device=before.device) < (0.2 if self.training else 0.0)
        outputs: list[Tensor] = []
        for position in range(before.shape[1]):
            words = before[:, position]
            if outputs:
                words = torch.where(own[:, position], outputs[-1].detach().argmax(dim=1), words)
            state = self.cell(torch.cat([self.words(words), attended], dim=1), state)
            scores = torch.einsum("btw,bw->bt", memory, self.align(state[0])).masked_fill(padded, -1e4)
            context = torch.einsum("bt,btw->bw", torch.softmax(scores, dim=1), memory)
            attended = torch.tanh(self.combine(torch.cat([context, state[0]], dim=1)))
            outputs.append(self.outlet(attended))
        return torch.stack(outputs, dim=1)


class ConvSeq2Seq(Translation):
    """Gated convolutions in both halves, attention between them, weight normalisation,
    sums scaled by sqrt(0.5).
    """

    def __init__(self, width: int = 12) -> None:
        super().__init__()
        weight_norm = nn.utils.parametrizations.weight_norm
        self.source_words = nn.Embedding(self.vocabulary, width)
        self.target_words = nn.Embedding(self.vocabulary, width)
        self.encoder = weight_norm(nn.Conv1d(width, 2 * width, 3, padding=1))
        self.decoder = weight_norm(nn.Conv1d(width, 2 * width, 3, padding=2))
        self.query = weight_norm(nn.Linear(width, width))
        self.outlet = nn.Linear(width, self.vocabulary)

    def logits(self, source: Tensor, before: Tensor) -> Tensor:
        words, targets = self.source_words(source), self.target_words(before)
        memory = (
            functional.glu(self.encoder(words.transpose(1, 2)), dim=1).transpose(1, 2) + words
        ) * 0.5**0.5
        hidden = functional.glu(
            self.decoder(targets.transpose(1, 2))[..., : before.shape[1]], dim=1
        ).transpose(1, 2)
        queries = (self.query(hidden) + targets) * 0.5**0.5
        scores = (queries @ memory.transpose(1, 2)).masked_fill((source == PADDING).unsqueeze(1), -1e4)
        context = torch.softmax(scores, dim=2) @ (memory + words) * source.shape[1] ** 0.5
        return self.outlet(functional.dropout((hidden + context) * 0.5**0.5, 0.1, self.training))


class PointerGenerator(Translation):
    """The output mixes a softmax over words with copies of source words;
    the negative logarithm of the mixture.
    """

    def __init__(self, width: int = 12) -> None:
        super().__init__()
        self.words = nn.Embedding(self.vocabulary, width)
        self.encoder = nn.GRU(width, width, batch_first=True)
        self.decoder = nn.GRU(width, width, batch_first=True)
        self.copied = nn.Linear(2 * width, 1)
        self.outlet = nn.Linear(2 * width, self.vocabulary)

    def forward(self, source: Tensor, target: Tensor) -> Tensor:
        memory, state = self.encoder(self.words(source))
        hidden = self.decoder(self.words(functional.pad(target, (1, -1), value=START)), state)[0]
        attention = torch.softmax(hidden @ memory.transpose(1, 2), dim=2)
        both = torch.cat([hidden, attention @ memory], dim=2)
        share = torch.sigmoid(self.copied(both))
        generated = (1 - share) * torch.softmax(self.outlet(both), dim=2)
        places = source.unsqueeze(1).expand(-1, target.shape[1], -1)
        mixture = generated.scatter_add(2, places, share * attention)
        chosen = mixture.gather(2, target.unsqueeze(2)).squeeze(2)
        counted = (target != PADDING).to(chosen.dtype)
        return -((chosen + 1e-6).log() * counted).sum() / counted.sum()


class PointerNetwork(nn.Module):
    """Numbers are sorted: each step points at an input, and the inputs already named are masked."""

    def __init__(self, width: int = 16) -> None:
        super().__init__()
        self.encoder = nn.LSTM(1, width, batch_first=True)
        self.cell = nn.LSTMCell(1, width)
        self.key = nn.Linear(width, width, bias=False)
        self.query = nn.Linear(width, width, bias=False)
        self.score = nn.Linear(width, 1, bias=False)

    def make_batch(self, generator: torch.Generator, batch_size: int, length: int) -> tuple[Tensor, ...]:
        numbers = sampling.uniform(generator, batch_size, length)
        return numbers, numbers.argsort(dim=1)

    def forward(self, numbers: Tensor, order: Tensor) -> Tensor:
        memory, (hidden, cell) = self.encoder(numbers.unsqueeze(2))
        state = (hidden[-1], cell[-1])
        keys = self.key(memory)
        named = torch.zeros_like(numbers, dtype=torch.bool)
        before = torch.zeros_like(numbers[:, :1])
        losses = []
        for step in order[:, : min(6, order.shape[1] - 1)].unbind(dim=1):
            state = self.cell(before, state)
            scores = self.score(torch.tanh(keys + self.query(state[0]).unsqueeze(1))).squeeze(2)
            losses.append(functional.cross_entropy(scores.masked_fill(named, -torch.inf), step))
            named = named.scatter(1, step.unsqueeze(1), value=True)
            before = numbers.gather(1, step.unsqueeze(1))
        return torch.stack(losses).mean()
