"""Estimates memory and traffic of one rank, at any world size: it runs the engine on fake tensors."""
