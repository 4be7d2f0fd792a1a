"""Sharing the optimizer's state out between the host and the device (`offload_ratio`)."""
