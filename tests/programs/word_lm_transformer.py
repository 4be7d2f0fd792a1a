"""A word language model of transformer layers, with sinusoidal positions and dropout."""

import math

import torch
from common import StepLog, arguments, corpus, kernel, parts
from torch import Tensor, nn
from torch.nn import functional

WORDS, WIDTH, LENGTH, COLUMNS = 60, 32, 16, 8


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


class Network(nn.Module):
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


def main() -> None:
    """Train; in variant 2 the scores of half of the words at a time are computed."""
    args = arguments(__doc__)
    text = corpus(COLUMNS, 20 * LENGTH + 1, WORDS)
    model = Network()
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


if __name__ == "__main__":
    main()
