"""The parameters column of the stage table: replicated on every rank, or sharded and gathered for use."""
