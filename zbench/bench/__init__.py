"""Benchmarks of parts of the engine: `zbench bench`, or `python -m zbench.bench.NAME`."""
