"""Built-in models, a GPT and an MLP. Called with (tokens, targets), they return the loss."""

import itertools
from functools import partial

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, gelu, scaled_dot_product_attention
from torch.utils.checkpoint import checkpoint


def chunked_cross_entropy(head: nn.Module, x: Tensor, targets: Tensor, chunks: int) -> Tensor:
    """Return the mean cross-entropy of targets [B, T] for x [B, T, width], in float32 or wider.

    With several chunks the logits of one chunk of tokens exist at once, also in backward, which computes them
    again.
    """

    def of(x: Tensor, targets: Tensor, reduction: str) -> Tensor:
        logits = head(x)
        logits = logits.to(torch.promote_types(logits.dtype, torch.float32))  # a float64 run stays in float64
        return cross_entropy(logits.flatten(0, -2), targets.flatten(), reduction=reduction)

    if chunks == 1:
        return of(x, targets, "mean")
    total = x.new_zeros((), dtype=torch.promote_types(x.dtype, torch.float32))
    parts = x.flatten(0, 1).chunk(chunks), targets.flatten().chunk(chunks)
    for part, of_part in zip(*parts, strict=True):
        total = total + checkpoint(of, part, of_part, "sum", use_reentrant=False)
    return total / targets.numel()


class Block(nn.Module):
    """x [B, T, width] -> [B, T, width]: attention and an MLP of 4 x width, each after a layer norm."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.attention_norm = nn.LayerNorm(width)
        self.qkv = nn.Linear(width, 3 * width)
        self.attention_out = nn.Linear(width, width)
        self.mlp_norm = nn.LayerNorm(width)
        self.mlp_in = nn.Linear(width, 4 * width)
        self.mlp_out = nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self._attend(self.attention_norm(x))
        hidden: Tensor = self.mlp_out(gelu(self.mlp_in(self.mlp_norm(x))))
        return x + hidden

    def _attend(self, x: Tensor) -> Tensor:
        batch, length, width = x.shape
        heads = self.qkv(x).view(batch, length, 3, self.heads, width // self.heads)
        q, k, v = heads.permute(2, 0, 3, 1, 4)
        mixed = scaled_dot_product_attention(q, k, v, is_causal=True)
        out: Tensor = self.attention_out(mixed.transpose(1, 2).reshape(batch, length, width))
        return out


class GPT(nn.Module):
    """Decoder of `layers` blocks. tied_head: the output projection shares the token embedding's weight."""

    def __init__(
        self,
        *,
        layers: int,
        width: int,
        heads: int,
        vocabulary: int,
        sequence_length: int,
        tied_head: bool,
        loss_chunks: int,
    ) -> None:
        super().__init__()
        self.loss_chunks = loss_chunks
        self.tokens = nn.Embedding(vocabulary, width)
        self.positions = nn.Embedding(sequence_length, width)
        self.blocks = nn.ModuleList(Block(width, heads) for _ in range(layers))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, vocabulary, bias=False)
        for embedding in (self.tokens, self.positions):
            nn.init.normal_(embedding.weight, std=0.02)
        if tied_head:
            self.head.weight = self.tokens.weight

    def forward(self, tokens: Tensor, targets: Tensor) -> Tensor:
        """Return the mean cross-entropy of targets for tokens (int64 [B, T] each), in float32 or wider."""
        x = self.tokens(tokens) + self.positions(torch.arange(tokens.shape[1], device=tokens.device))
        for block in self.blocks:
            x = block(x)
        return chunked_cross_entropy(self.head, self.norm(x), targets, self.loss_chunks)


class MLP(nn.Module):
    """`layers` linear layers: sequence_length -> hidden -> ... -> vocabulary, with GELU between them."""

    def __init__(
        self,
        *,
        layers: int,
        hidden: int,
        vocabulary: int,
        sequence_length: int,
        activation_checkpointing: bool = False,
    ) -> None:
        super().__init__()
        self.checkpointed = activation_checkpointing
        self.vocabulary = vocabulary
        widths = [sequence_length, *[hidden] * (layers - 1), vocabulary]
        self.layers = nn.ModuleList(nn.Linear(a, b) for a, b in itertools.pairwise(widths))

    def forward(self, tokens: Tensor, targets: Tensor) -> Tensor:
        """Return the mean cross-entropy of the last targets (int64 [B, T] each), in float32 or wider."""
        dtype = next(self.parameters()).dtype
        x = tokens.to(dtype) * (2.0 / self.vocabulary) - 1.0
        for place in range(len(self.layers)):
            layer = partial(self._layer, place)
            x = checkpoint(layer, x, use_reentrant=False) if self.checkpointed else layer(x)
        logits = x.to(torch.promote_types(x.dtype, torch.float32))
        return cross_entropy(logits, targets[:, -1])

    def _layer(self, place: int, x: Tensor) -> Tensor:
        out: Tensor = self.layers[place](gelu(x) if place else x)
        return out
