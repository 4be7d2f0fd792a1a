"""From an EngineSpec to an Engine: every choice becomes an object here, once."""
