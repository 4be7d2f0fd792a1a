"""EngineSpec to Engine: the stage table, and every other choice, made once."""
