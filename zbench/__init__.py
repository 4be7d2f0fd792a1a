"""zbench: benchmark and tune ZeRO training configurations, each with a correctness verdict."""

__version__ = "0.1.0"
