"""The time that an event loop stood still, as `/metrics` shows it."""

import asyncio
import time

from prometheus_client import CollectorRegistry

from orderlymq_runtime.pages.looplag import PERIOD_S, LoopStall


def _longer_than(registry: CollectorRegistry, clock: str, seconds: str) -> float:
    labels = {"clock": clock}
    name = "orderlymq_loop_stall_seconds"
    total = registry.get_sample_value(f"{name}_count", labels)
    below = registry.get_sample_value(f"{name}_bucket", {**labels, "le": seconds})
    assert total is not None
    assert below is not None
    return total - below


async def test_a_callback_that_computes_shows_in_both_clocks_and_one_that_waits_in_one() -> None:
    """Law: a stall counts at least the blocked time; CPU time counts only if the callback computes rather than waits."""
    registry = CollectorRegistry()
    stall = LoopStall(registry)
    stall.start()
    await asyncio.sleep(2 * PERIOD_S)

    # It blocks the loop on purpose, because that is measured.
    time.sleep(0.3)  # noqa: ASYNC251
    await asyncio.sleep(2 * PERIOD_S)
    waited = _longer_than(registry, "wall", "0.2"), _longer_than(registry, "cpu", "0.2")
    until = time.thread_time() + 0.3
    while time.thread_time() < until:
        pass
    await asyncio.sleep(2 * PERIOD_S)
    stall.close()
    stall.close()

    assert waited[0] >= 1
    assert waited[1] == 0
    assert _longer_than(registry, "wall", "0.2") > waited[0]
    assert _longer_than(registry, "cpu", "0.2") == 1
    count = registry.get_sample_value("orderlymq_loop_stall_seconds_count", {"clock": "wall"})
    await asyncio.sleep(2 * PERIOD_S)
    assert count == registry.get_sample_value(
        "orderlymq_loop_stall_seconds_count", {"clock": "wall"}
    )
