"""A multi-layer perceptron that predicts the token after a sequence. Called with (tokens, targets): its
loss."""

import itertools

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, gelu
from torch.utils.checkpoint import checkpoint


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
        """Return the mean cross-entropy of each sequence's last target, in float32 or wider."""
        dtype = next(self.parameters()).dtype
        x = tokens.to(dtype) * (2.0 / self.vocabulary) - 1.0
        for place in range(len(self.layers)):
            if self.checkpointed:
                x = checkpoint(self._layer, place, x, use_reentrant=False)
            else:
                x = self._layer(place, x)
        logits = x.to(torch.promote_types(x.dtype, torch.float32))
        return cross_entropy(logits, targets[:, -1])

    def _layer(self, place: int, x: Tensor) -> Tensor:
        out: Tensor = self.layers[place](gelu(x) if place else x)
        return out
