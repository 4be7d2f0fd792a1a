"""The built-in engine, after saying in the rank's log at which addresses the process listens."""

from typing import Any

import psutil
from torch import nn

from zbench.engine import Engine, build_engine
from zbench.spec.engine import EngineSpec


def listening() -> list[str]:
    """Return the addresses at which this process accepts connections over the network."""
    found = psutil.Process().net_connections(kind="inet")
    return sorted(one.laddr.ip for one in found if one.status == psutil.CONN_LISTEN)


def build(model: nn.Module, spec: EngineSpec, *rest: Any, **more: Any) -> Engine:
    engine = build_engine(model, spec.model_copy(update={"engine": "builtin"}), *rest, **more)
    print(f"listens at {','.join(listening())}.", flush=True)
    return engine
