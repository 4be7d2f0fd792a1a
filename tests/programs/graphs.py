"""Programs that classify the nodes of a graph."""

from argparse import Namespace

import torch
from common import StepLog, graph, kernel, run
from safetensors.torch import save_file
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


class AttentionNetwork(nn.Module):
    """Two layers of attention."""

    def __init__(self, features: int, classes: int, *, by_pairs: bool) -> None:
        super().__init__()
        self.first = Attention(features, 8, 4, joins=True, by_pairs=by_pairs)
        self.second = Attention(32, classes, 1, joins=False, by_pairs=by_pairs)

    def forward(self, nodes: Tensor, adjacency: Tensor) -> Tensor:
        """Return the logarithm of each class's probability."""
        hidden = functional.elu(self.first(nodes, adjacency))
        return self.second(hidden, adjacency).log_softmax(dim=-1)


def graph_attention(args: Namespace) -> None:
    """Graph attention (Velickovic et al. 2018): heads weigh the neighbours of each node of a small graph.

    Train on the classes of half of the nodes.
    """
    nodes, adjacency, labels = graph()
    known = torch.randperm(len(nodes))[: len(nodes) // 2]
    model = AttentionNetwork(nodes.shape[1], int(labels.max()) + 1, by_pairs=args.variant == 2)
    optimizer = torch.optim.Adam(model.parameters(), lr=5e-3, weight_decay=5e-4, **kernel(args.variant))
    log = StepLog(args.output)
    for _ in range(args.steps):
        optimizer.zero_grad()
        functional.nll_loss(model(nodes, adjacency)[known], labels[known]).backward()
        optimizer.step()
        log.end_step()
    torch.save(model.state_dict(), args.output / "gat.pt")


class Convolution(nn.Module):
    """Multiplies features by weights, and adds those of the neighbours; or adds first."""

    def __init__(self, inputs: int, outputs: int, *, adds_first: bool) -> None:
        super().__init__()
        self._adds_first = adds_first
        self.kernel = nn.Parameter(torch.empty(inputs, outputs))
        self.bias = nn.Parameter(torch.zeros(outputs))
        nn.init.xavier_normal_(self.kernel)

    def forward(self, nodes: Tensor, adjacency: Tensor) -> Tensor:
        """Take [N, inputs] and a normalized, sparse [N, N]."""
        if self._adds_first:
            return adjacency @ nodes @ self.kernel + self.bias
        return adjacency @ (nodes @ self.kernel) + self.bias


class ConvolutionNetwork(nn.Module):
    """Two convolutions with dropout between them."""

    def __init__(self, features: int, hidden: int, classes: int, *, adds_first: bool) -> None:
        super().__init__()
        self.first = Convolution(features, hidden, adds_first=adds_first)
        self.second = Convolution(hidden, classes, adds_first=adds_first)

    def forward(self, nodes: Tensor, adjacency: Tensor) -> Tensor:
        """Return the logarithm of each class's probability."""
        hidden = functional.dropout(self.first(nodes, adjacency).relu(), 0.5, self.training)
        return self.second(hidden, adjacency).log_softmax(dim=-1)


def graph_convolution(args: Namespace) -> None:
    """Graph convolution (Kipf and Welling 2017): two layers on a small graph, with a sparse adjacency.

    Train on the classes of half of the nodes.
    """
    nodes, edges, labels = graph()
    roots = edges.sum(dim=1).rsqrt()
    adjacency = (roots[:, None] * edges * roots).to_sparse()
    known = torch.randperm(len(nodes))[: len(nodes) // 2]
    model = ConvolutionNetwork(nodes.shape[1], 16, int(labels.max()) + 1, adds_first=args.variant == 2)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01, weight_decay=5e-4, **kernel(args.variant))
    log = StepLog(args.output)
    for _ in range(args.steps):
        optimizer.zero_grad()
        functional.nll_loss(model(nodes, adjacency)[known], labels[known]).backward()
        optimizer.step()
        log.end_step()
    save_file(model.state_dict(), args.output / "gcn.safetensors")


if __name__ == "__main__":
    run(graph_attention, graph_convolution)
