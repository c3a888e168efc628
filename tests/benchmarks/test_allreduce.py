"""benchmarks/allreduce.py: the ring that it finds in times."""

import pytest


def test_the_benchmark_finds_the_ring_that_made_its_times(load_program):
    """2 processes, 2 ms a message, 0.5 GB/s; and times that fall short of any latency."""
    fit_ring = load_program("benchmarks/allreduce.py").fit_ring
    fit = fit_ring((10**6, 10**8), (0.004 + 0.002, 0.004 + 0.2))
    assert (fit.bandwidth, fit.latency) == pytest.approx((0.5e9, 0.002))
    assert fit.seconds(10**8, 4) == pytest.approx(0.012 + 0.3)
    assert fit.seconds(10**8, 4, sharing=2) == pytest.approx(2 * (0.012 + 0.3))
    assert fit_ring((10**6, 10**8), (0.0005, 0.1)).latency == 0
