"""Benchmarks of the engine and of what zbench promises; not installed: `python -m tools.benchmarks.NAME`."""
