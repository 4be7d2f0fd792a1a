"""The waits of the engine that no schedule can show to be needed, and why each is kept.

`mutate_waits` removes every wait; `test_waits` holds its page, which has them all, against the code.
"""

FREES = "frees memory"
BOUNDS = "bounds the memory in flight; the reductions are waited for later all the same"
APART = "`overlap_comm: false` asks that nothing overlaps; no value depends on it"
DROPPED = "what these copies bring is gathered anew by `settle`; no copy reads what is being written"

REASONS: dict[str, str] = {
    "compiled/compile.py self._once.release(used=False)": FREES,
    "compiled/compile.py self._several.release(used=False)": FREES,
    "compiled/compile.py self._once.release(used=True)": FREES,
    "compiled/compile.py self._several.release(used=True)": FREES,
    "compiled/compile.py self.reducer.reduced_gradients.release()": FREES,
    "gradients/accumulators.py self._buffers.release(used=used)": FREES,
    "gradients/accumulators.py self._sums.release(used=used)": FREES,
    "gradients/bucket_buffers.py self._inner.release(used=used)": FREES,
    "gradients/bucket_buffers.py self._pooled.release(used=used)": FREES,
    "gradients/bucket_buffers.py self.inner.release(used=used)": FREES,
    "gradients/reduced_buffers.py flat.release()": FREES,
    "gradients/reduced_buffers.py self.release()": FREES,
    "gradients/reducer.py self._complete_down_to(self.in_flight - bucket.length)": BOUNDS,
    "gradients/reducer.py self._complete_down_to(0) #3": APART,
    "gradients/sinks.py self.reducer.reduced_gradients.release()": FREES,
    "parameters/access.py self.store.release()": DROPPED,
}
