"""Collectives: the only folder that distinguishes gloo from NCCL."""
