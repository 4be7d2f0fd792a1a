"""Waits that no schedule on a CPU is sure to miss: the order of a device's streams, an interrupted wait."""

import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch

from tests.engine.far_memory.streams import CARD, Stream, Values, modelled
from zbench.engine.memory.kinds import Filled, GradientStream, used_on_current_stream
from zbench.engine.transport.buffers import streams_of, to_host
from zbench.engine.transport.works import QueuedWork


def run_all(stream: Stream) -> None:
    stream.run(len(stream.operations))


def test_a_copy_to_the_host_follows_its_sources_kernel() -> None:
    with modelled() as (device, memory):
        source, target = Values(device), Values(device)
        source.write(3.0)
        copy: Any = memory.copy_in(source, target)  # type: ignore[arg-type]
        copy.wait()
        assert target.value == 3.0
        assert copy.is_completed()
        assert to_host(source).value == 3.0  # type: ignore[arg-type, attr-defined]


@pytest.mark.parametrize("freed", [False, True])
def test_a_copied_source_may_be_freed_or_written_after_release(freed: bool) -> None:
    with modelled() as (device, memory):
        source, target = Values(device, 3.0), Values(device)
        copy = memory.copy_in(source, target)  # type: ignore[arg-type]
        if freed:
            source.free()
        else:
            copy.release()
            source.write(4.0)
            run_all(device.main)
        copy.wait()
        assert target.value == 3.0


def test_the_reading_stream_alone_waits_for_a_copy() -> None:
    with modelled() as (device, memory):
        source, target, read, other = (Values(device, 3.0), *(Values(device) for _ in range(3)))
        copy = memory.copy_out(source, target)  # type: ignore[arg-type]
        other.write(4.0)
        run_all(device.main)
        assert other.value == 4.0
        assert not copy.is_completed(), "a prefetch would overlap nothing"
        side = Stream()
        with device.stream(side):
            copy.wait()
            read.copy_(target)
        run_all(side)
        assert read.value == 3.0


def test_a_gather_is_launched_behind_the_copy_of_its_part() -> None:
    with modelled() as (device, memory):
        source, part, gathered = Values(device, 3.0), Values(device), Values(device)
        copy = memory.copy_out(source, part)  # type: ignore[arg-type]
        with copy.behind():
            stream = device.current_stream()
            gathered.copy_(part)
        assert stream is not device.main
        run_all(stream)
        assert gathered.value == 3.0


def test_ends_of_a_copy_to_the_device_may_be_freed() -> None:
    with modelled() as (device, memory):
        source, target, other = Values(device, 3.0), Values(device), Values(device, 1.0)
        memory.copy_out(source, other)  # type: ignore[arg-type]
        other.free()
        assert other.value == 1.0, "the copy writes to memory that belongs to others"
        memory.copy_out(source, target).release()  # type: ignore[arg-type]
        source.value = 4.0
        run_all(device.main)
        assert target.value == 3.0


def test_memory_that_another_stream_still_reads_may_be_freed() -> None:
    """A forward on a stream of the user's reads weights, and gives them up before it has run."""
    with modelled() as (device, _):
        weights, out, side = Values(device, 3.0), Values(device), Stream()
        with device.stream(side):
            out.copy_(weights)
            used_on_current_stream(weights)  # type: ignore[arg-type]
        weights.free()
        run_all(side)
        assert out.value == 3.0


def test_a_gradient_of_another_stream_is_taken_behind_its_kernel() -> None:
    """Autograd computes a gradient on the stream of its forward, and calls hooks there."""
    with modelled() as (device, _):
        taken = GradientStream(torch.device("cuda", CARD))
        bucket, side = Values(device), Stream()
        taken.begin()
        with device.stream(side):
            gradient = Values(device)
            gradient.write(3.0)
            with taken.behind(gradient):  # type: ignore[arg-type]
                assert device.current_stream() is device.main
                bucket.copy_(gradient)
            gradient.free()
            run_all(side)
        run_all(device.main)
        assert bucket.value == 3.0


def test_weights_that_one_stream_gathered_may_be_read_on_another() -> None:
    with modelled() as (device, _):
        weights, out, side = Values(device), Values(device), Stream()
        weights.write(3.0)
        filled = Filled(weights)  # type: ignore[arg-type]
        with device.stream(side):
            filled.read_here()
            out.copy_(weights)
        weights.free()
        run_all(side)
        assert out.value == 3.0


def in_a_thread(call: Callable[[], object]) -> None:
    """Call it in a thread that has not chosen a device."""
    errors: list[BaseException] = []

    def run() -> None:
        try:
            call()
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    for error in errors:
        raise error


def test_any_thread_orders_the_streams_of_the_models_card() -> None:
    """Also one that has chosen no device, such as a user's that calls `engine.backward`."""
    with modelled() as (device, memory):
        card = torch.device("cuda", CARD)
        values: Any = Values(device, 3.0)
        streams, stream, filled = streams_of(card), GradientStream(card), Filled(values)
        assert streams is not None
        copies = [way(values, Values(device)) for way in (memory.copy_in, memory.copy_out)]  # type: ignore[arg-type]
        for call in (
            *(call for copy in copies for call in (copy.is_completed, copy.wait, copy.release)),
            stream.begin,
            lambda: stream.behind(values),
            filled.read_here,
            lambda: used_on_current_stream(values),
            streams.stream,
            lambda: to_host(values),
        ):
            in_a_thread(call)


def test_an_interrupted_wait_ends_behind_the_work() -> None:
    class Interrupted(threading.Event):
        times = 0

        def wait(self, timeout: float | None = None) -> bool:
            self.times += 1
            if self.times == 1:
                raise KeyboardInterrupt
            return super().wait(timeout)

    begin = threading.Event()
    work = QueuedWork(begin.wait, _done=Interrupted())
    threading.Timer(0.02, begin.set).start()
    thread = threading.Thread(target=work.do)
    thread.start()
    with pytest.raises(KeyboardInterrupt):
        work.wait()
    assert work.is_completed(), "the interrupt was raised while the thread still used the memory"
    thread.join()
