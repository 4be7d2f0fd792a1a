"""Trains a small language model with DeepSpeed, as many scripts do; it knows nothing of zbench."""

import argparse
import time

import deepspeed
import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional

VOCABULARY, LENGTH = 256, 32


class Model(nn.Module):
    """Predicts each next token from the one before it."""

    def __init__(self, width: int = 128) -> None:
        super().__init__()
        self.embed = nn.Embedding(VOCABULARY, width)
        self.body = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))
        self.head = nn.Linear(width, VOCABULARY)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """Return the mean cross entropy of [B, T] tokens."""
        logits = self.head(self.body(self.embed(tokens[:, :-1])))
        return functional.cross_entropy(logits.flatten(0, 1).float(), tokens[:, 1:].flatten())


def main() -> None:
    """Train, print each step's time, and save a checkpoint."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--save", default="checkpoint")
    args = deepspeed.add_config_arguments(parser).parse_args()
    deepspeed.init_distributed("nccl" if torch.cuda.is_available() else "gloo")
    torch.manual_seed(0)
    model = Model()
    engine, *_ = deepspeed.initialize(args=args, model=model, model_parameters=model.parameters())
    generator = torch.Generator().manual_seed(1 + dist.get_rank())
    rows = engine.train_micro_batch_size_per_gpu()
    for step in range(args.steps):
        began = time.perf_counter()
        for _ in range(engine.gradient_accumulation_steps()):
            tokens = torch.randint(VOCABULARY, (rows, LENGTH + 1), generator=generator)
            loss = engine(tokens.to(engine.device))
            engine.backward(loss)
            engine.step()
        if dist.get_rank() == 0:
            print(f"step {step}: loss {loss.item():.4f}, {time.perf_counter() - began:.6f} s", flush=True)
    engine.save_checkpoint(args.save)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
