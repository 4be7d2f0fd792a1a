"""What a resumed run needs, and the files it is kept in."""

from zbench.engine.checkpoint.files import load, save

__all__ = ["load", "save"]
