"""The memories that hold the engine's buffers, and buffers that are partitioned over them."""
