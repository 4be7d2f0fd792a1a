"""The real engine under fake tensors: memory and traffic of one rank at any world size."""
