"""Graph attention (Velickovic et al. 2018): heads weigh the neighbours of each node of a small graph."""

import torch
from common import StepLog, arguments, graph, kernel
from torch import Tensor, nn
from torch.nn import functional


class Attention(nn.Module):
    """Heads of attention over neighbours; their outputs are joined, or averaged in the last layer."""

    def __init__(self, inputs: int, outputs: int, heads: int, *, joins: bool, by_pairs: bool) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(heads, inputs, outputs))
        self.scores = nn.Parameter(torch.empty(heads, 2 * outputs, 1))
        nn.init.xavier_normal_(self.weight)
        nn.init.xavier_normal_(self.scores)
        self._joins, self._by_pairs = joins, by_pairs

    def forward(self, nodes: Tensor, adjacency: Tensor) -> Tensor:
        """Take [N, inputs] and [N, N]."""
        hidden = functional.dropout(nodes, 0.6, self.training) @ self.weight
        scores = functional.leaky_relu(self._scores(hidden), 0.2)
        attention = scores.masked_fill(adjacency == 0, -torch.inf).softmax(dim=-1)
        mixed = functional.dropout(attention, 0.6, self.training) @ hidden
        return mixed.permute(1, 0, 2).flatten(1) if self._joins else mixed.mean(dim=0)

    def _scores(self, hidden: Tensor) -> Tensor:
        """Return [heads, N, N]: a product with both nodes' features side by side, or the sum of two."""
        heads, count, width = hidden.shape
        if not self._by_pairs:
            return hidden @ self.scores[:, :width] + (hidden @ self.scores[:, width:]).mT
        shape = (heads, count, count, width)
        sides = hidden[:, :, None].expand(shape), hidden[:, None].expand(shape)
        return (torch.cat(sides, dim=-1).flatten(1, 2) @ self.scores).view(heads, count, count)


class Network(nn.Module):
    """Two layers of attention."""

    def __init__(self, features: int, classes: int, *, by_pairs: bool) -> None:
        super().__init__()
        self.first = Attention(features, 8, 4, joins=True, by_pairs=by_pairs)
        self.second = Attention(32, classes, 1, joins=False, by_pairs=by_pairs)

    def forward(self, nodes: Tensor, adjacency: Tensor) -> Tensor:
        """Return the logarithm of each class's probability."""
        hidden = functional.elu(self.first(nodes, adjacency))
        return self.second(hidden, adjacency).log_softmax(dim=-1)


def main() -> None:
    """Train on the classes of half of the nodes."""
    args = arguments(__doc__)
    nodes, adjacency, labels = graph()
    known = torch.randperm(len(nodes))[: len(nodes) // 2]
    model = Network(nodes.shape[1], int(labels.max()) + 1, by_pairs=args.variant == 2)
    optimizer = torch.optim.Adam(model.parameters(), lr=5e-3, weight_decay=5e-4, **kernel(args.variant))
    log = StepLog(args.output)
    for _ in range(args.steps):
        optimizer.zero_grad()
        functional.nll_loss(model(nodes, adjacency)[known], labels[known]).backward()
        optimizer.step()
        log.end_step()
    torch.save(model.state_dict(), args.output / "gat.pt")


if __name__ == "__main__":
    main()
