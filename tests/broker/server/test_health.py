"""Liveness fails only if a restart helps; other problems make the broker not ready."""

from dataclasses import replace

import pytest

from orderlymq_broker.server.health import (
    DISK_MAX_S,
    SWAP_MAX_S,
    TICK_LATE_MAX_S,
    Signs,
    alive,
    hindrance,
)

WELL = Signs(
    idle_s=0.02,
    swapping_s=None,
    disk_waits_s=0.001,
    is_disk_stalled=False,
    stores_nothing=False,
    lacks_log=False,
    ailing=[],
    address_complaint="",
    has_failed=False,
    is_ending=False,
)


def test_a_process_that_works_is_alive_and_not_hindered() -> None:
    """Law: a working process is alive and ready."""
    assert (alive(WELL), hindrance(WELL)) == ((True, "ok"), "")


@pytest.mark.parametrize(
    ("signs", "word"),
    [
        (replace(WELL, idle_s=TICK_LATE_MAX_S + 1), "ticked"),
        (replace(WELL, swapping_s=SWAP_MAX_S), "snapshot"),
        (replace(WELL, disk_waits_s=DISK_MAX_S + 1, is_disk_stalled=True), "disk"),
        (replace(WELL, ailing=["link to 2 fails"]), "link to 2"),
        (replace(WELL, has_failed=True), "ends"),
    ],
)
def test_what_only_another_process_can_cure_is_not_alive(signs: Signs, word: str) -> None:
    """Law: a problem that only a restart cures fails liveness and readiness; both pages name it."""
    is_alive, reason = alive(signs)

    assert not is_alive
    assert word in reason
    assert hindrance(signs) == reason


@pytest.mark.parametrize(
    ("signs", "word"),
    [
        # An exchange of the store stops the ticks while it lasts.
        (replace(WELL, swapping_s=SWAP_MAX_S - 1, idle_s=SWAP_MAX_S - 1), "snapshot"),
        (replace(WELL, disk_waits_s=3.0, is_disk_stalled=True), "disk"),
        (replace(WELL, stores_nothing=True), "disk is full"),
        (replace(WELL, lacks_log=True), "not caught up"),
        (replace(WELL, address_complaint="port 1 is in use"), "port 1 is in use"),
        (replace(WELL, is_ending=True), "asked to end"),
    ],
)
def test_what_may_pass_is_alive_and_not_ready(signs: Signs, word: str) -> None:
    """Law: a problem that may pass makes the broker not ready, but leaves it alive."""
    assert alive(signs) == (True, "ok")
    assert word in hindrance(signs)
