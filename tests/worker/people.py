"""Training scripts as people write them, by family; `--do` changes how, or breaks it (`VARIANTS`).

Run as a script by `test_people.py`.
"""

import argparse
import copy
import itertools
import json
import time
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, softplus
from torch.utils.checkpoint import checkpoint

VARIANTS = {
    "regression": (
        ["foreach", "fused", "accumulate", "resume", "reversed"],
        [
            "drops_last",
            "loses_moments",
            "decays_biases",
            "lr_10_percent",
            "half_batch",
            "loses_step",
        ],
    ),
    "vision": (["channels_last", "evaluates"], ["stays_in_evaluation", "frozen_stem", "other_momentum"]),
    "encoder": (["checkpointing", "prefix"], ["frozen_block", "no_dropout", "other_order"]),
    "gan": (["foreach"], ["leaks"]),
    "recurrent": (["accumulate", "clips_foreach"], ["no_clipping", "detached"]),
    "averaged": (["foreach"], ["average_off_by_one"]),
    "autoencoder": (["accumulate", "double_loss"], ["other_noise", "no_divergence"]),
    "autocast": (["accumulate", "foreach"], ["lr_10_percent", "drops_last"]),
    "bfloat16": (["accumulate", "fused"], ["lr_10_percent", "half_batch", "loses_step"]),
    "policy": (["foreach"], ["no_baseline"]),
    "graph": (["foreach"], ["drops_edges"]),
    "lbfgs": (["reversed"], ["half_batch"]),
}
"""Family -> variants that train the same, and variants that do not."""

parser = argparse.ArgumentParser()
for name in ("--family", "--do", "--out"):
    parser.add_argument(name, default="")
parser.add_argument("--steps", type=int, default=10)
parser.add_argument("--seed", type=int, default=0)


def mlp(*widths: int) -> nn.Sequential:
    """Return linear layers with GELU between."""
    layers: list[nn.Module] = []
    for wide, narrow in itertools.pairwise(widths):
        layers += [nn.Linear(wide, narrow), nn.GELU()]
    return nn.Sequential(*layers[:-1])


class Residual(nn.Module):
    """A residual block with batch norm."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.convolution = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.norm = nn.BatchNorm2d(channels)

    def forward(self, x: Tensor) -> Tensor:
        """Return the block's output."""
        return torch.relu(x + self.norm(self.convolution(x)))


class Run:
    """What all families share: flags, data, steps and the file that is saved."""

    def __init__(self, flags: argparse.Namespace) -> None:
        self.do, self.out, self.count, self.seed = flags.do, flags.out, flags.steps, flags.seed
        torch.set_num_threads(1)
        torch.manual_seed(flags.seed)
        self.data = torch.Generator().manual_seed(flags.seed + 100)

    def steps(self) -> Iterator[int]:
        """Yield the numbers of the steps, and log how long each took."""
        for step in range(self.count):
            began = time.perf_counter()
            yield step
            with open(f"{self.out}/steps.jsonl", "a") as log:
                print(json.dumps({"seconds": time.perf_counter() - began}), file=log)

    def draw(self, *shape: int) -> Tensor:
        """Return values of the data set."""
        return torch.randn(*shape, generator=self.data)

    def adam(self, model: nn.Module, **more: Any) -> torch.optim.Optimizer:
        """Return the optimizer in the form that the variant asks for."""
        form = {"fused": True} if self.do == "fused" else {"foreach": self.do == "foreach"}
        rate = 1.1e-3 if self.do == "lr_10_percent" else 1e-3
        decayed = [p for p in model.parameters() if p.ndim > 1 or self.do == "decays_biases"]
        rest = [p for p in model.parameters() if all(p is not other for other in decayed)]
        groups = [{"params": decayed, "weight_decay": 0.1}, {"params": rest, "weight_decay": 0.0}]
        return torch.optim.AdamW([g for g in groups if g["params"]], lr=rate, **form, **more)

    def train(
        self, model: nn.Module, loss_of: Callable[..., Tensor], batch: Callable[[], tuple[Tensor, ...]]
    ) -> None:
        """Train with micro-batches, and save."""
        optimizer = self.adam(model)
        parts = 4 if self.do in ("accumulate", "drops_last") else 1
        for step in self.steps():
            if step == 6 and self.do in ("resume", "loses_moments"):
                state = copy.deepcopy(optimizer.state_dict())
                optimizer = self.adam(model)
                if self.do == "resume":
                    optimizer.load_state_dict(state)
            tensors = batch()
            if self.do == "reversed":
                tensors = tuple(tensor.flip(0) for tensor in tensors)
            if self.do == "half_batch":
                tensors = tuple(tensor[: len(tensor) // 2] for tensor in tensors)
            optimizer.zero_grad()
            for part, micro in enumerate(zip(*(tensor.chunk(parts) for tensor in tensors), strict=True)):
                if self.do == "drops_last" and part == parts - 1:
                    continue
                loss = loss_of(model, *micro) / parts
                loss.backward()
            if self.do != "no_clipping":
                foreach = self.do == "clips_foreach"
                nn.utils.clip_grad_norm_(model.parameters(), 0.5, foreach=foreach)
            if not (self.do == "loses_step" and step == 5):
                optimizer.step()
        self.save(model.state_dict())

    def save(self, state: dict[str, Any]) -> None:
        """Save the weights."""
        torch.save(state, f"{self.out}/model.pt")


def squares(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    """Return the mean squared error."""
    return (model(x) - y).square().mean()


def regression(run: Run) -> None:
    """An MLP, AdamW with decay groups."""
    run.train(mlp(32, 64, 64, 8), squares, lambda: (x := run.draw(64, 32), torch.tanh(x[:, :8]))[0:2])


def bfloat16(run: Run) -> None:
    """The same, all in bfloat16, or float32 to see what rounding does."""
    dtype = torch.float32 if run.do == "precise" else torch.bfloat16
    model = mlp(32, 64, 64, 8).to(dtype)
    run.train(model, squares, lambda: ((x := run.draw(64, 32)).to(dtype), torch.tanh(x[:, :8]).to(dtype)))


def autocast(run: Run) -> None:
    """The same under autocast in bfloat16."""

    def loss_of(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        with torch.autocast("cpu", torch.bfloat16):
            out = model(x)
        return (out.float() - y).square().mean()

    run.train(mlp(32, 64, 64, 8), loss_of, lambda: (x := run.draw(64, 32), torch.tanh(x[:, :8]))[0:2])


def recurrent(run: Run) -> None:
    """A GRU with clipping."""
    model = nn.ModuleDict({"rnn": nn.GRU(8, 24, batch_first=True), "head": nn.Linear(24, 8)})

    def loss_of(model: nn.Module, x: Tensor) -> Tensor:
        seen, _ = model["rnn"](x[:, :-1])
        seen = seen.detach() if run.do == "detached" else seen
        return (model["head"](seen) - x[:, 1:]).square().mean() * 20

    run.train(model, loss_of, lambda: (run.draw(32, 12, 8).cumsum(1) / 3,))


def graph(run: Run) -> None:
    """A graph network with scattered sums."""
    model = nn.ModuleList([nn.Linear(8, 16), nn.Linear(16, 4)])
    edges = torch.randint(0, 40, (2, 160), generator=run.data)

    def loss_of(model: nn.Module, x: Tensor) -> Tensor:
        kept = edges[:, :80] if run.do == "drops_edges" else edges
        h = torch.relu(model[0](x[0]))
        h = h + torch.zeros_like(h).index_add(0, kept[1], h[kept[0]])
        return model[1](h).square().mean()

    run.train(model, loss_of, lambda: (run.draw(1, 40, 8),))


def autoencoder(run: Run) -> None:
    """A variational autoencoder."""
    model = nn.ModuleDict({"e": mlp(16, 32, 8), "d": mlp(4, 32, 16)})

    def loss_of(model: nn.Module, x: Tensor, noise: Tensor) -> Tensor:
        mean, spread = model["e"](x).chunk(2, 1)
        noise = torch.randn_like(noise) if run.do == "other_noise" else noise
        error = (model["d"](mean + noise * (spread / 2).exp()) - x).square()
        error = error.double().mean().float() if run.do == "double_loss" else error.mean()
        divergence = (mean.square() + spread.exp() - 1 - spread).mean()
        return error + (0 if run.do == "no_divergence" else 0.1) * divergence

    run.train(model, loss_of, lambda: (run.draw(64, 16), run.draw(64, 4)))


def policy(run: Run) -> None:
    """A policy gradient with a baseline."""
    model = mlp(4, 32, 3)

    def loss_of(model: nn.Module, states: Tensor, luck: Tensor) -> Tensor:
        logits = model(states).log_softmax(1)
        actions = (logits.detach() - (-luck.log()).log()).argmax(1)
        reward = (actions == states[:, 0].gt(0).long()).float()
        baseline = 0 if run.do == "no_baseline" else reward.mean()
        return -((reward - baseline) * logits.gather(1, actions[:, None])[:, 0]).mean()

    run.train(model, loss_of, lambda: (run.draw(64, 4), torch.rand(64, 3, generator=run.data)))


def vision(run: Run) -> None:
    """A small residual network with batch norm and SGD."""
    model = nn.Sequential(
        nn.Conv2d(3, 8, 3), Residual(8), Residual(8), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 4)
    )
    layout = torch.channels_last if run.do == "channels_last" else torch.contiguous_format
    model = model.to(memory_format=layout)
    trained = model[1:] if run.do == "frozen_stem" else model
    momentum = 0.8 if run.do == "other_momentum" else 0.9
    optimizer = torch.optim.SGD(trained.parameters(), lr=0.05, momentum=momentum)
    for step in run.steps():
        x, y = run.draw(16, 3, 10, 10).contiguous(memory_format=layout), torch.arange(16) % 4
        optimizer.zero_grad()
        cross_entropy(model(x), y).backward()
        optimizer.step()
        if step == 3 and run.do in ("evaluates", "stays_in_evaluation"):
            model.eval()(x)
            model.train(run.do == "evaluates")
    run.save(model.state_dict())


def encoder(run: Run) -> None:
    """Transformer blocks with dropout."""
    rate = 0.0 if run.do == "no_dropout" else 0.1
    blocks = nn.ModuleList(nn.TransformerEncoderLayer(16, 2, 32, rate, batch_first=True) for _ in range(3))
    model = nn.ModuleDict({"blocks": blocks, "head": nn.Linear(16, 4)})
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    torch.manual_seed(run.seed + 5)
    for _ in run.steps():
        x, y = run.draw(16, 6, 16), torch.arange(16) % 4
        if run.do == "other_order":
            x = x.roll(1, 0)
        for block in blocks:
            if run.do == "checkpointing":
                x = checkpoint(block, x, use_reentrant=False)
            else:
                x = checkpoint(block, x, use_reentrant=True) if run.do == "frozen_block" else block(x)
        optimizer.zero_grad()
        cross_entropy(model["head"](x.mean(1)), y).backward()
        optimizer.step()
    prefix = "module._orig_mod." if run.do == "prefix" else ""
    run.save({f"{prefix}{name}": value for name, value in model.state_dict().items()})


def gan(run: Run) -> None:
    """A generator and a discriminator."""
    nets = {"G": mlp(4, 32, 2), "D": mlp(2, 32, 1)}
    opts = {key: run.adam(net, betas=(0.5, 0.999)) for key, net in nets.items()}
    for _ in run.steps():
        real, noise = run.draw(32, 2), run.draw(32, 4)
        fake = nets["G"](noise)
        opts["D"].zero_grad()
        (softplus(-nets["D"](real)) + softplus(nets["D"](fake.detach()))).mean().backward()
        opts["D"].step()
        opts["G"].zero_grad()
        softplus(-nets["D"](fake)).mean().backward()
        if run.do == "leaks":
            opts["D"].step()
        opts["G"].step()
    run.save({key: net.state_dict() for key, net in nets.items()})


def averaged(run: Run) -> None:
    """An exponential average of the weights, saved beside them."""
    model = mlp(16, 32, 4)
    average = copy.deepcopy(model)
    optimizer = run.adam(model)
    for _ in run.steps():
        x = run.draw(32, 16)
        optimizer.zero_grad()
        squares(model, x, x[:, :4]).backward()
        late = run.do != "average_off_by_one"
        if late:
            optimizer.step()
        with torch.no_grad():
            for kept, new in zip(average.parameters(), model.parameters(), strict=True):
                kept.lerp_(new, 0.1)
        if not late:
            optimizer.step()
    run.save(
        {"model": model.state_dict(), "average": average.state_dict(), "optimizer": optimizer.state_dict()}
    )


def lbfgs(run: Run) -> None:
    """LBFGS on all data at once."""
    model = nn.Linear(8, 2)
    x = run.draw(64, 8)
    x = x.flip(0) if run.do == "reversed" else x[: 32 if run.do == "half_batch" else 64]
    optimizer = torch.optim.LBFGS(model.parameters(), lr=0.1, max_iter=4)

    def closure() -> Tensor:
        optimizer.zero_grad()
        loss = squares(model, x, torch.tanh(x[:, :2]))
        loss.backward()
        return loss

    for _ in run.steps():
        optimizer.step(closure)
    run.save(model.state_dict())


if __name__ == "__main__":
    arguments = parser.parse_args()
    globals()[arguments.family](Run(arguments))
