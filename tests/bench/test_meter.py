import pytest
from bench.meter import Reading, Spent, spent


def test_what_is_left_of_the_machine_is_others() -> None:
    """CPU time that neither the cluster, nor the load, nor the bench used belongs to other processes."""
    begin = Reading(at=10.0, cluster=1.0, client=2.0, ours=0.0, machine=100.0)
    end = Reading(at=14.0, cluster=4.0, client=3.0, ours=0.2, machine=105.0)

    found = spent(begin, end, 2)

    assert found == Spent(4.0, 3.0, 1.0, found.elsewhere)
    assert found.elsewhere == pytest.approx(0.8 / 8)


def test_clocks_that_tick_coarsely_never_make_others_negative() -> None:
    """The kernel counts processes and the machine with different clock ticks."""
    begin = Reading(0.0, 0.0, 0.0, 0.0, 0.0)
    end = Reading(1.0, 0.9, 0.2, 0.0, 1.0)

    assert spent(begin, end, 2).elsewhere == 0.0
