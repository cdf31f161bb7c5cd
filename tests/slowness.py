"""How busy the machine is: for tests that state how long something takes in real time."""

import time

__all__ = ["measure_slowness"]


def measure_slowness() -> float:
    """Return how many times longer a piece of work takes now than on a machine that is idle: 1.0 there."""
    began, began_cpu = time.perf_counter(), time.thread_time()
    while (cpu := time.thread_time() - began_cpu) < 0.02:
        pass
    return max(1.0, (time.perf_counter() - began) / cpu)
