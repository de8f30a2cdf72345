"""A measured time is the time that a client waited: checked on histories of a few events."""

from orderlymq.oracle.verdict import Event, Kind
from tests.nemesis.figures import Gap, figures, gaps, lags_s, rates
from tests.nemesis.measures import (
    SECOND,
    Target,
    failures,
    keeps,
    median,
    pause_s,
    resumed_s,
    taken_over_s,
)


def at(seconds: float) -> int:
    return int(seconds * SECOND)


def delivery(seconds: float, queue: str, client: str, group: str = "G") -> Event:
    return Event(at(seconds), Kind.DELIVER, queue=queue, client=client, group=group)


def test_what_was_under_way_at_the_cause_is_no_resumption() -> None:
    """An acknowledgement that arrives just after the kill was written before it."""
    times = [at(t) for t in (9.0, 9.9, 10.01, 10.4, 10.5)]

    assert resumed_s(times, at(10.0), at(20.0)) == 0.4


def test_what_never_goes_on_has_no_time() -> None:
    """It must not be counted as fast."""
    assert resumed_s([at(9.0)], at(10.0), at(20.0)) is None
    assert resumed_s([], at(10.0), at(20.0)) is None


def test_a_pause_that_begins_before_the_window_counts() -> None:
    """The pause of a planned move may begin with the last acknowledgement before it."""
    times = [at(t) for t in (1.0, 9.95, 10.05, 10.06)]

    assert round(pause_s(times, at(10.0), at(11.0)), 3) == 0.1


def test_only_queues_of_the_dead_count_as_taken_over() -> None:
    """Queue 1 was another's, queue 2 was given away before, queue 3 nobody took, queue 4 got nothing."""
    events = [
        *(Event(at(10.1), Kind.ACK, queue=f"g:{number}") for number in range(4)),
        delivery(1, "g:4", "a"),
        delivery(1, "g:0", "a"),
        delivery(1, "g:1", "b"),
        delivery(1, "g:2", "a"),
        delivery(2, "g:2", "b"),
        delivery(2, "g:3", "a"),
        delivery(2, "g:0", "a", group="other"),
        delivery(10.2, "g:1", "b"),
        delivery(10.5, "g:0", "b"),
        delivery(11.0, "g:0", "b"),
    ]

    assert taken_over_s(events, "G", "a", at(10)) == [0.5, 90.0]


def test_failures_are_counted_inside_the_window() -> None:
    """Refused and unknown outcomes, not acknowledgements."""
    kinds = ((1.0, Kind.REFUSED), (2.0, Kind.UNKNOWN), (2.5, Kind.ACK), (9.0, Kind.REFUSED))
    events = [Event(at(seconds), kind) for seconds, kind in kinds]

    assert failures(events, at(1.5), at(5.0)) == 1


def test_targets_are_about_the_median_and_the_worst() -> None:
    """Nothing measured keeps no target."""
    assert median([3.0, 1.0, 2.0, 9.0]) == 2.0
    assert keeps([0.4, 0.5, 1.2], Target(0.5, 1.5))
    assert not keeps([0.4, 0.6, 0.7], Target(0.5, 1.5))
    assert not keeps([0.4, 0.4, 1.6], Target(0.5, 1.5))
    assert not keeps([], Target(0.5, 1.5))


def test_rates_and_gaps_are_those_of_the_history() -> None:
    """Each second of a run has its number; a gap is a time in which no producer at all was answered."""
    events = [
        Event(at(0.1), Kind.ACK, process="producer-sdk.1"),
        Event(at(0.2), Kind.ACK, process="producer-java-4.9.8.1"),
        Event(at(0.9), Kind.ACK, process="producer-sdk.1"),
        Event(at(2.5), Kind.ACK, process="producer-java-4.9.8.1"),
        Event(at(2.6), Kind.DELIVER, client="consumer-java-5.4.0.2", group="G"),
    ]

    counted = figures(events)

    assert counted.acks == {"SDK": [at(0.1), at(0.9)], "Java 4": [at(0.2), at(2.5)]}
    assert counted.deliveries == {"Java 5, G": [at(2.6)]}
    assert rates(counted.acks["SDK"], 0, at(3.0)) == [2, 0, 0, 0]
    assert gaps(counted.acks) == [Gap(at(0.2), at(0.9)), Gap(at(0.9), at(2.5))]
    assert counted.longest_gap_s("Java 4", at(1.0), at(2.0)) == 2.3


def test_a_lag_is_from_the_acknowledgement_to_the_first_delivery() -> None:
    """A redelivery does not count, nor what a group never got; one delivered before its answer waited 0."""
    events = [
        Event(at(1.0), Kind.ACK, message="m1"),
        Event(at(2.0), Kind.ACK, message="m2"),
        Event(at(2.0), Kind.ACK, message="m3"),
        Event(at(1.5), Kind.DELIVER, message="m1", group="G"),
        Event(at(9.0), Kind.DELIVER, message="m1", group="G"),
        Event(at(1.9), Kind.DELIVER, message="m2", group="G"),
    ]

    assert lags_s(events) == {"G": [0.0, 0.5]}
