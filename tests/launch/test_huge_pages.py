"""A server's memory in huge pages: nothing in it changes, and forked processes see the same."""

import mmap
import os

from zbench.launch.huge_pages import use_huge_pages

_BYTES = 8 << 20


def test_what_is_in_memory_stays_for_a_process_and_what_it_forks() -> None:
    pattern = bytes(range(256)) * (_BYTES // 256)
    with mmap.mmap(-1, _BYTES, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS) as memory:
        memory[:] = pattern
        held = [str(number) for number in range(200_000)]
        use_huge_pages()
        child = os.fork()
        if child == 0:
            memory[:4] = b"mine"
            same = memory[4:] == pattern[4:] and held[-1] == "199999"
            os._exit(0 if same else 1)
        _, status = os.waitpid(child, 0)
        assert os.waitstatus_to_exitcode(status) == 0
        assert memory[:] == pattern, "what the child wrote is its own"
    assert sum(map(len, held)) == sum(len(str(number)) for number in range(200_000))
