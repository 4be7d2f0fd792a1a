"""The tuner, measured by replay: how many trials it needs to come close to a best that is known.

The full figures, with 50 seeds, are the soak below and `results/benchmarks/tuner.md`; the short version runs by
default with fewer seeds.
"""
