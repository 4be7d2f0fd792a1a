"""Ratios, bars and the page of the Adam benchmark, from made-up samples."""

from typing import Any

from tools.benchmarks import adam_report


def table(name: str, numel: int, threads: int, **seconds: float) -> dict[str, Any]:
    named = {contender.replace("_", " "): value for contender, value in seconds.items()}
    return {"table": name, "numel": numel, "threads": threads, "median_seconds": named}


def document(*tables: dict[str, Any], device: str = "cpu") -> dict[str, Any]:
    content = {"device": device, "isa": "avx512", "huge_pages": False, "rounds": 9, "tables": list(tables)}
    return {**content, "bars": adam_report.judge(content)}


def test_bars_are_judged_at_most_threads_and_32_million() -> None:
    tables = [
        table("phase", 32_000_000, 1, zbench=1.0, bound=0.1),
        table("phase", 1_000, 2, zbench=1.0, bound=0.1),
        table("phase", 32_000_000, 2, zbench=1.0, bound=0.95, torch_fused=2.5, torch_fused_slow=3.0),
        table("phase", 200_000_000, 2, zbench=1.0, bound=0.1),
    ]
    verdicts = {verdict["says"]: verdict for verdict in document(*tables)["bars"]}
    stream = verdicts["fused phase / stream of its 30 bytes a parameter"]
    assert (stream["ratio"], stream["numel"], stream["threads"]) == (0.95, 32_000_000, 2)
    assert stream["met"]
    assert verdicts["fused phase / the same phase on torch fused AdamW"]["ratio"] == 2.5
    assert not any("DeepSpeed" in says for says in verdicts)
    in_caches = table("plain", 1_000_000, 2, zbench=1.0, bound=2.0)
    assert not document(in_caches)["bars"]


def test_a_gpu_has_bars_of_its_own() -> None:
    tables = [table("phase", 32_000_000, 0, zbench=1.0, bound=0.95, torch_fused=1.4)]
    verdicts = document(*tables, device="NVIDIA Something")["bars"]
    assert [(v["least"], v["met"]) for v in verdicts] == [(0.90, True), (1.5, False)]


def test_the_page_has_bars_and_every_contender() -> None:
    page = adam_report.markdown(document(table("many", 20_000_000, 2, zbench=0.01, torch_fused=0.02)))
    bar = "| 2,000 tensors of 10 k / torch fused AdamW | torch fused | 20,000,000 | 2 | 2.000 | 1.50 | yes |"
    assert bar in page
    assert "| many | 20,000,000 | 2 | torch fused | 20 ms | 2.000 |" in page
    assert "| many | 20,000,000 | 2 | zbench | 10 ms |  |" in page
