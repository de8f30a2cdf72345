"""A replica does not start if its settings contradict each other."""

import pytest

from orderlymq_raft import Config, NodeId


@pytest.mark.parametrize(
    ("settings", "complaint"),
    [
        ({"id": 0}, "positive"),
        ({"heartbeat_ticks": 0}, "at least 1"),
        ({"election_ticks": 4, "heartbeat_ticks": 2}, "more than twice"),
        ({"lease_reads": True, "check_quorum": False}, "needs check_quorum"),
        ({"inflight_appends_max": 0}, "at least one append"),
        ({"inflight_bytes_max": 0}, "at least one append"),
        ({"entries_per_append_bytes_max": 0}, "at least one append"),
    ],
)
def test_contradictions_are_refused(settings: dict[str, int], complaint: str) -> None:
    """Law: the error names the rule that is broken."""
    with pytest.raises(ValueError, match=complaint):
        Config(**{"id": NodeId(1), **settings})  # type: ignore[arg-type]  # wrong on purpose


def test_the_least_of_everything_is_taken() -> None:
    """Law: the lowest allowed values work together."""
    Config(
        NodeId(1),
        election_ticks=3,
        heartbeat_ticks=1,
        inflight_appends_max=1,
        inflight_bytes_max=1,
        entries_per_append_bytes_max=1,
    )


def test_defaults_elect_within_half_a_second() -> None:
    """Law: at 25 ms a tick, a crash is detected within 400 ms and heartbeats are 50 ms apart."""
    config = Config(NodeId(1))

    assert 25 * 2 * config.election_ticks <= 400
    assert 25 * config.heartbeat_ticks == 50
