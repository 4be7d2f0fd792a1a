"""What a warm server imports before it forks workers: the memory shim first, then torch and its slow parts.

Import this module, and nothing that imports torch, in the server's fresh process. It starts no threads, so
forking afterwards is safe; numpy's and OpenMP's own threads are the server's environment's business.
"""

# isort: off
import zbench.measure.shim
import torch
import torch._dynamo
import torch._inductor.compile_fx
# isort: on

__all__ = ["torch", "zbench"]
