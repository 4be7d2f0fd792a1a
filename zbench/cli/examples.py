"""Examples of every command, for its help and for the documentation's page of commands. Tests run them."""

EXAMPLES: dict[str, tuple[tuple[str, str], ...]] = {
    "sweep": (
        ("zbench sweep quickstart", "measure and judge every configuration of the file"),
        ("zbench sweep quickstart --max-time 20min", "start no repeat after 20 minutes"),
        ("zbench sweep --resume last", "continue after Ctrl-C, a kill, a full disk or --max-time"),
    ),
    "run": (
        ("zbench run --trace --set zero_stage=2 --set world_size=2", "also trace a step"),
        ("zbench run --set zero_stage=2 --set world_size=2", "one configuration of a small GPT"),
    ),
    "plan": (("zbench plan stages", "what would run, and what is invalid and why"),),
    "estimate": (
        ("zbench estimate stages --device-memory 24Gi", "what fits in 24 GiB, and what remains"),
        ("zbench estimate quickstart --world-size 64 --set zero_stage=1", "the same at 64 ranks"),
    ),
    "tune": (
        ("zbench tune tune --budget 40trials --memory 2Gi", "the fastest within 2 GiB"),
        (
            "zbench tune tune --method nsga2 --objective maximize:tokens_per_s"
            " --objective minimize:peak_device_bytes",
            "a Pareto front of speed and memory",
        ),
    ),
    "init": (
        ("zbench init sweep.yaml", "a commented sweep file that runs as it is"),
        ("zbench init mine.yaml --from my_module:make_model", "begin with your own model"),
        ("zbench init from_ds.yaml --from ds_config.json", "begin with a DeepSpeed configuration"),
    ),
    "worker": (
        ("zbench worker --storage postgresql://zbench@db.example/zbench --study tune", "join a search"),
    ),
    "show": (
        ("zbench show", "the table of the newest run"),
        ("zbench show last --verbose", "everything measured, configuration by configuration"),
        ("zbench show quickstart --relative-to zero_stage=0", "each configuration relative to stage 0"),
    ),
    "list": (("zbench list", "all runs in results/"), ("zbench list --json", "the same as JSON")),
    "compare": (
        ("zbench compare last --save-baseline main", "keep the newest run as baseline `main`"),
        ("zbench compare main last", "is the newest run slower, larger or wrong?"),
        ("zbench compare last~1 last", "the newest run against the one before"),
        ("zbench compare HEAD~1 HEAD --paired --sweep sweeps/quickstart.yaml", "measure two commits"),
    ),
    "tag": (("zbench tag last before-the-rewrite", "give the newest run a name"),),
    "bisect": (
        ("zbench bisect v1.2 HEAD --sweep sweeps/quickstart.yaml", "the first commit that has a fault"),
    ),
    "history": (
        ("zbench history", "each configuration's step time over all runs"),
        ("zbench history --metric peak_device_bytes", "each configuration's memory"),
    ),
    "report": (
        ("zbench report last", "Markdown for an issue or a README"),
        ("zbench report last --html report.html", "one page without scripts or network"),
        ("zbench report last --baseline main --plots plots", "the charts as SVG, with a comparison"),
    ),
    "publish": (
        ("zbench publish --to site", "all runs in results/; open site/index.html"),
        ("zbench publish --to site --commits https://github.com/me/project/commit/", "link commits"),
    ),
    "export": (
        ("zbench export last --trial best --output ds_config.json", "the best as DeepSpeed JSON"),
        ("zbench export last --trial best --to fsdp2", "as Python code for torch's FSDP2"),
    ),
    "doctor": (
        ("zbench doctor", "what this machine can run"),
        ("zbench doctor --engine-python .venv-deepspeed", "which engines run in another environment"),
        ("zbench doctor --aa", "the smallest slowdown that this machine can detect"),
    ),
    "check": (
        ("zbench check last", "is every file of the newest run whole?"),
        ("zbench check results", "every run, baseline and tag"),
    ),
    "prune": (
        ("zbench prune --dry-run", "what would be removed, and how large it is"),
        ("zbench prune --older-than 30d", "only what has not changed for 30 days"),
    ),
    "schema": (("zbench schema", "every key of a sweep file, for editors and for reading"),),
}


def epilog(command: str) -> str:
    """Return the examples as a command's help prints them; empty for a command without examples."""
    lines = [f"{line}  [dim]# {description}[/dim]" for line, description in EXAMPLES.get(command, ())]
    return "\n".join(["[bold]Examples[/bold]", *lines]) if lines else ""
