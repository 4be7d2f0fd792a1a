"""Measured in a fresh process, because the shim must be loaded before torch: prints what it saw as JSON.

With the argument `late`, torch is imported first.
"""

import gc
import importlib
import json
import sys
import threading

if "late" in sys.argv:
    importlib.import_module("torch")
importlib.import_module("zbench.measure.shim")

import torch  # noqa: E402 - the order of imports is what this is about

from zbench.measure.memory import StepMemory, choose_meter  # noqa: E402


def main() -> None:
    torch.set_num_threads(2)
    gc.disable()
    cycle: list[object] = [torch.empty(7_000_000, dtype=torch.uint8)]
    cycle.append(cycle)
    del cycle
    meter, warning = choose_meter(torch.device("cpu"))
    seen: dict[str, object] = {"exact": meter.exact, "warning": warning}
    gc.enable()
    gc.collect()
    seen["garbage from before"] = meter.live()
    held = torch.empty(1000, dtype=torch.uint8)
    meter.reset()
    seen["held"] = meter.peak()
    temporary = torch.empty(5_000_000, dtype=torch.uint8)
    del temporary
    seen["temporary"] = meter.peak()
    meter.reset()
    seen["after reset"] = meter.peak()
    storage = torch.zeros(1 << 20)
    view = storage[: 1 << 10].view(32, 32)
    del storage
    seen["view"] = meter.peak()
    del view

    def elsewhere() -> None:
        torch.empty(3_000_017, dtype=torch.uint8)

    meter.reset()
    thread = threading.Thread(target=elsewhere)
    thread.start()
    thread.join()
    seen["another thread"] = meter.peak()

    steps = StepMemory(meter, torch.device("cpu"))
    for size in (1 << 20, 1 << 22, 1 << 21):
        steps.begin()
        torch.empty(size, dtype=torch.uint8)
        steps.end()
        torch.empty(1 << 25, dtype=torch.uint8)  # between steps: nobody's
    memory = steps.summary({"parameters": 600, "host_moments": 400})
    seen["steps"] = [memory.peak_device_bytes, memory.peak_host_bytes, memory.by_category]
    seen["rss"] = memory.peak_rss_bytes
    del held
    print(json.dumps(seen))


main()
