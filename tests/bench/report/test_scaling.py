"""The model of larger clusters."""

import math
from dataclasses import replace

from bench.report.scaling import Capacity, Costs, capacity, lines, of_group

COSTS = Costs(leader_us=40.0, follower_us=20.0)


def test_processors_are_shared_by_all_copies_of_a_message() -> None:
    """24 cores at seven tenths, with 80 µs a message; a leader with 40 µs fills its core at 17,500 messages/s."""
    found = capacity(COSTS, 3, 8)

    assert math.isclose(of_group(COSTS), 17_500.0)
    assert math.isclose(found.rate, 210_000.0)
    assert found == Capacity(3, 8, found.rate, 12, "processors")


def test_machines_of_many_cores_are_bound_by_what_does_not_grow_with_them() -> None:
    """Each of three machines writes each message once, however many cores it has."""
    found = capacity(COSTS, 3, 64)

    assert found.bound == "disks"
    assert math.isclose(found.rate, 1e9 / (1024 * 2.18))
    assert capacity(replace(COSTS, size=100), 3, 64).bound == "processors"
    assert capacity(replace(COSTS, written=0.5), 3, 64).bound == "network"


def test_ten_times_the_machines_take_ten_times_the_messages() -> None:
    """Broker groups share only machines."""
    assert math.isclose(capacity(COSTS, 30, 16).rate, 10 * capacity(COSTS, 3, 16).rate)


def test_the_table_has_every_size_and_its_assumptions() -> None:
    found = list(lines(COSTS))

    assert "| 3 | 8 | 210,000 | 12 | 12 | processors |" in found
    assert sum(line.startswith("| ") for line in found) == 1 + 9
    assert sum(line.startswith("* ") for line in found) == 6
