"""What a warm server imports before it forks workers: the memory shim first, then torch.

Import this module, and nothing that imports torch, in the server's fresh process. It starts no threads, so
forking afterwards is safe; numpy's and OpenMP's own threads are the server's environment's business.
"""

# isort: off
import zbench.measure.shim
import torch
# isort: on

__all__ = ["torch", "zbench"]
