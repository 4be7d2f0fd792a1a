"""Checkpoints: what a resumed run needs, and its files."""

from zbench.engine.checkpoint.files import load, save, save_weights

__all__ = ["load", "save", "save_weights"]
