"""`workload.global_batch_size`: constant work per step, from which gradient accumulation follows."""

from typing import Any

KEY = "workload.global_batch_size"


def with_accumulation(config: dict[str, Any]) -> dict[str, Any]:
    """Return a configuration whose accumulation fits `global_batch_size`; unchanged where that is not set.

    ValueError, with the remedy, where no whole number of micro-batches fits or another number is asked for.
    """
    workload, engine = config["workload"], config["engine"]
    total = workload.get("global_batch_size")
    if total is None:
        return config
    size, ranks = workload["micro_batch_size"], config["run"]["world_size"]
    if total % (size * ranks):
        raise ValueError(
            f"{total} is no multiple of micro_batch_size x world_size ({size} x {ranks} = {size * ranks});"
            " change one of them"
        )
    steps = total // (size * ranks)
    counted = engine["accumulation_mode"] == "micro_steps"
    section, key = (
        ("engine", "gradient_accumulation_steps") if counted else ("workload", "backwards_per_step")
    )
    if config[section][key] not in (1, steps):
        raise ValueError(
            f"{total} over {ranks} ranks of {size} takes {key}: {steps}, got {config[section][key]};"
            f" leave {key} out, it follows from global_batch_size"
        )
    return {**config, section: {**config[section], key: steps}}
