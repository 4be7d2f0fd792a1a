"""Graph convolution (Kipf and Welling 2017): two layers on a small graph, with a sparse adjacency."""

import torch
from common import StepLog, arguments, graph, kernel
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.nn import functional


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


class Network(nn.Module):
    """Two convolutions with dropout between them."""

    def __init__(self, features: int, hidden: int, classes: int, *, adds_first: bool) -> None:
        super().__init__()
        self.first = Convolution(features, hidden, adds_first=adds_first)
        self.second = Convolution(hidden, classes, adds_first=adds_first)

    def forward(self, nodes: Tensor, adjacency: Tensor) -> Tensor:
        """Return the logarithm of each class's probability."""
        hidden = functional.dropout(self.first(nodes, adjacency).relu(), 0.5, self.training)
        return self.second(hidden, adjacency).log_softmax(dim=-1)


def main() -> None:
    """Train on the classes of half of the nodes."""
    args = arguments(__doc__)
    nodes, edges, labels = graph()
    roots = edges.sum(dim=1).rsqrt()
    adjacency = (roots[:, None] * edges * roots).to_sparse()
    known = torch.randperm(len(nodes))[: len(nodes) // 2]
    model = Network(nodes.shape[1], 16, int(labels.max()) + 1, adds_first=args.variant == 2)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01, weight_decay=5e-4, **kernel(args.variant))
    log = StepLog(args.output)
    for _ in range(args.steps):
        optimizer.zero_grad()
        functional.nll_loss(model(nodes, adjacency)[known], labels[known]).backward()
        optimizer.step()
        log.end_step()
    save_file(model.state_dict(), args.output / "gcn.safetensors")


if __name__ == "__main__":
    main()
