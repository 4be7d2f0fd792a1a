"""Where tensors lie; asked of storages, as a fake tensor has no address."""

from torch import Tensor


def place(tensor: Tensor) -> tuple[int, int]:
    """Return the storage of a tensor and the byte at which the tensor begins in it."""
    return tensor.untyped_storage()._cdata, int(tensor.storage_offset()) * tensor.element_size()


def overlap(one: Tensor, other: Tensor) -> bool:
    """Whether two dense tensors share memory."""
    (storage, begin), (other_storage, other_begin) = place(one), place(other)
    shared = begin < other_begin + other.nbytes and other_begin < begin + one.nbytes
    return storage == other_storage and shared
