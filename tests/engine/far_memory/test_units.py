"""Waits that no schedule on a CPU is sure to miss: the order of a device's streams, interrupted waits,
and one that only a race shows.
"""

import threading
from collections.abc import Callable
from unittest import mock

import pytest
import torch

from tests.engine.far_memory.streams import CARD, Stream, Threads, Values, modelled
from tests.engine.speculative import running
from zbench.engine.memory.kinds import Filled, GradientStream, used_on_current_stream
from zbench.engine.speculative.updates import Update
from zbench.engine.transport.buffers import streams_of, to_host
from zbench.engine.transport.works import QueuedWork


def test_a_copy_to_the_host_comes_behind_the_kernel_that_writes_its_source() -> None:
    with modelled() as (device, memory):
        source, target = Values(device), Values(device)
        source.write(3.0)
        copy = memory.copy_in(source, target)  # type: ignore[arg-type]
        copy.wait()
        assert target.value == 3.0
        assert copy.is_completed()


def test_the_source_of_a_copy_to_the_host_may_be_written_after_release() -> None:
    with modelled() as (device, memory):
        source, target = Values(device, 3.0), Values(device)
        copy = memory.copy_in(source, target)  # type: ignore[arg-type]
        copy.release()
        source.write(4.0)
        device.main.run(len(device.main.operations))
        copy.wait()
        assert target.value == 3.0


def test_the_source_of_a_copy_to_the_host_may_be_freed() -> None:
    with modelled() as (device, memory):
        source, target = Values(device, 3.0), Values(device)
        copy = memory.copy_in(source, target)  # type: ignore[arg-type]
        source.free()
        copy.wait()
        assert target.value == 3.0


def test_a_copy_to_the_device_is_waited_for_by_the_stream_that_reads_it() -> None:
    with modelled() as (device, memory):
        source, target, read = Values(device, 3.0), Values(device), Values(device)
        copy = memory.copy_out(source, target)  # type: ignore[arg-type]
        side = Stream()
        with device.stream(side):
            copy.wait()
            read.copy_(target)
        side.run(len(side.operations))
        assert read.value == 3.0


def test_what_is_computed_does_not_wait_for_a_copy_to_the_device_that_it_does_not_read() -> None:
    with modelled() as (device, memory):
        source, target, out = Values(device, 3.0), Values(device), Values(device)
        copy = memory.copy_out(source, target)  # type: ignore[arg-type]
        out.write(4.0)
        device.main.run(len(device.main.operations))
        assert out.value == 4.0
        assert not copy.is_completed(), "a prefetch would overlap nothing"


def test_a_gather_is_launched_behind_the_copy_of_its_part() -> None:
    with modelled() as (device, memory):
        source, part, gathered = Values(device, 3.0), Values(device), Values(device)
        copy = memory.copy_out(source, part)  # type: ignore[arg-type]
        with copy.behind():
            stream = device.current_stream()
            gathered.copy_(part)
        assert stream is not device.main
        stream.run(len(stream.operations))
        assert gathered.value == 3.0


def test_the_target_of_a_copy_to_the_device_may_be_freed() -> None:
    with modelled() as (device, memory):
        source, target = Values(device, 3.0), Values(device, 1.0)
        memory.copy_out(source, target)  # type: ignore[arg-type]
        target.free()
        assert target.value == 1.0, "the copy writes to memory that belongs to others"


def test_what_is_read_on_the_host_has_been_computed() -> None:
    with modelled() as (device, _):
        values = Values(device)
        values.write(3.0)
        assert to_host(values).value == 3.0  # type: ignore[arg-type, attr-defined]


def test_the_host_may_write_the_source_of_a_copy_to_the_device_after_release() -> None:
    with modelled() as (device, memory):
        source, target = Values(device, 3.0), Values(device)
        copy = memory.copy_out(source, target)  # type: ignore[arg-type]
        copy.release()
        source.value = 4.0
        device.main.run(len(device.main.operations))
        assert target.value == 3.0


def test_memory_that_another_stream_still_reads_may_be_freed() -> None:
    """A forward on a stream of the user's reads weights, and gives them up before it has run."""
    with modelled() as (device, _):
        weights = Values(device, 3.0)
        out = Values(device)
        side = Stream()
        with device.stream(side):
            out.copy_(weights)
            used_on_current_stream(weights)  # type: ignore[arg-type]
        weights.free()
        side.run(len(side.operations))
        assert out.value == 3.0


def test_a_gradient_of_another_stream_is_taken_behind_the_kernel_that_writes_it() -> None:
    """Autograd computes a gradient on the stream of its forward, and calls hooks there."""
    with modelled() as (device, _):
        taken = GradientStream(torch.device("cuda", CARD))
        gradient = Values(device)
        bucket = Values(device)
        taken.begin()
        with device.stream(Stream()):
            gradient.write(3.0)
            with taken.behind(gradient):  # type: ignore[arg-type]
                assert device.current_stream() is device.main
                bucket.copy_(gradient)
        device.main.run(len(device.main.operations))
        assert bucket.value == 3.0


def test_a_gradient_of_another_stream_may_be_freed_when_it_has_been_taken() -> None:
    with modelled() as (device, _):
        side = Stream()
        taken = GradientStream(torch.device("cuda", CARD))
        bucket = Values(device)
        taken.begin()
        with device.stream(side):
            gradient = Values(device, 3.0)
            with taken.behind(gradient):  # type: ignore[arg-type]
                bucket.copy_(gradient)
            gradient.free()
            side.run(len(side.operations))
        device.main.run(len(device.main.operations))
        assert bucket.value == 3.0


def test_weights_that_one_stream_gathered_may_be_read_on_another() -> None:
    with modelled() as (device, _):
        weights = Values(device)
        out = Values(device)
        side = Stream()
        weights.write(3.0)
        filled = Filled(weights)  # type: ignore[arg-type]
        with device.stream(side):
            filled.read_here()
            out.copy_(weights)
        weights.free()
        side.run(len(side.operations))
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


@pytest.mark.parametrize("way", ["copy_in", "copy_out"])
def test_a_copy_is_waited_for_on_its_own_card_by_any_thread(way: str) -> None:
    with modelled() as (device, memory):
        copy = getattr(memory, way)(Values(device, 3.0), Values(device))
        in_a_thread(copy.is_completed)
        in_a_thread(copy.wait)
        in_a_thread(copy.release)


def test_any_thread_orders_the_streams_of_the_models_card() -> None:
    """Also one that has chosen no device, such as a user's that calls `engine.backward`."""
    with modelled() as (device, _):
        card = torch.device("cuda", CARD)
        values = Values(device, 3.0)
        taken = Values(device)
        streams = streams_of(card)
        stream = GradientStream(card)
        filled = Filled(values)  # type: ignore[arg-type]
        assert streams is not None
        in_a_thread(stream.begin)
        for call in (
            lambda: stream.behind(taken),  # type: ignore[arg-type]
            filled.read_here,
            lambda: used_on_current_stream(values),  # type: ignore[arg-type]
            streams.stream,
        ):
            in_a_thread(call)


def test_the_thread_that_watches_chooses_the_card_of_its_rank() -> None:
    with modelled() as (device, _):
        streams = streams_of(torch.device("cuda", CARD))
        assert streams is not None
        stream = streams.stream()

        def watch() -> None:
            assert streams.place(stream).query()
            streams.enter()
            Threads.check()

        in_a_thread(watch)
        assert stream is device.main


def test_values_are_read_on_the_host_in_pages_that_their_own_card_locks() -> None:
    with modelled() as (device, _):
        values = Values(device)
        values.write(3.0)
        readings: list[float] = []
        in_a_thread(lambda: readings.append(to_host(values).value))  # type: ignore[arg-type, attr-defined]
        assert readings == [3.0]


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
    try:
        work.wait()
    except KeyboardInterrupt:
        assert work.is_completed(), "the interrupt was raised while the thread still used the memory"
    else:
        raise AssertionError("the interrupt was lost")
    thread.join()


def test_no_update_is_pending_when_a_step_decides_which_to_do_again() -> None:
    """To do one again writes the hyperparameters that a pending one reads."""
    model = running.layers()
    with running.engine(model, gradient_clipping=0.0) as built:
        schedule = running.schedule_of(built)
        pending = list[int]()
        current = schedule.updates.current

        def noted(update: Update) -> bool:
            pending.append(len(schedule.worker.pending))
            return current(update)

        with mock.patch.object(schedule.updates, "current", noted):
            built.backward(running.loss(model))
            built.step()
    assert pending
    assert not any(pending)
