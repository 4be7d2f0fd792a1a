"""What a user asks for: sweep files, their keys and values, and the trials that they make."""

SHIPPED = ("quickstart", "stages", "tune", "peers")
LISTED = f"{', '.join(SHIPPED[:-1])} or {SHIPPED[-1]}"
"""The sweeps that come with zbench, which a command takes by their names."""
