"""How long sweeps take to name the fastest: the table of what was measured."""

from tools.benchmarks.naming import table


def test_orders_are_compared_by_their_medians_and_by_what_they_name() -> None:
    seconds = {"turns": (40.0, 50.0, 90.0), "rounds": (100.0, 80.0, 200.0)}
    findings = [
        {"order": order, "loaded": True, "named": named, "seconds": each, "rounds": 7}
        for order, values in seconds.items()
        for each, named in zip(values, ("fastest", "another", "nothing"), strict=True)
    ]
    text = table(findings)
    assert "| a busy loop on each core | turns | 3 | 1 | 1 | 50 | 7 |" in text
    assert text.endswith("Turns over rounds: 0.50 with other work.")
