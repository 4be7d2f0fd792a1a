"""What commands and the Python API do, as functions: no flags, no exit, and as loud as the caller wants."""

from pathlib import Path

DEFAULT_OUTPUT_DIR = Path("results")
