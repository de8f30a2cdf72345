"""A listener that does not return: the member renews its lease, and the group's consumeTimeout bounds that."""

import pytest

from orderlymq_broker.state.groups.failurepolicy import BACKOFF_MS
from orderlymq_protocol.body.lanes import Lane
from tests.broker.processors.lanes.member import Member, join, keys, lead, produce, table
from tests.broker.processors.lanes.test_reports import letters

LEASE_MS = 15_000
RENEW_MS = 5_000


def renew(member: Member, lane: Lane, ms: int) -> list[str]:
    """Let a member renew for so long as the SDK does, with its heartbeats; return the verdicts, each once."""
    verdicts: dict[tuple[str, str], None] = {}
    for _ in range(ms // RENEW_MS):
        member.shell.pass_time(RENEW_MS)
        join(member.shell, member.client)
        verdict = member.say("renew", lane)
        verdicts[verdict.verdict, verdict.remark] = None
    return [text for pair in verdicts for text in pair if text]


def hang(member: Member) -> Lane:
    """Take the lane that there is and never return, until the lease is over."""
    (lane,) = member.fetch(leaseMillis=LEASE_MS)
    renew(member, lane, 60_000 + LEASE_MS + RENEW_MS)
    return lane


def test_a_message_in_work_for_too_long_counts_as_failed() -> None:
    """Its lease is not renewed any more, and when it is over the lane is parked as after any failure."""
    shell = lead(consume_timeout_minutes=1)
    produce(shell, "x", "y")
    a, b = Member(shell), Member(shell, "b")
    x, y = a.fetch(leaseMillis=LEASE_MS)
    a.done(y)

    assert renew(a, x, 55_000) == ["renewed"]
    verdict, remark = renew(a, x, 2 * RENEW_MS)[-2:]

    assert (verdict, remark) == (
        "stale",
        "a message of the lane is in work for longer than the group's consumeTimeout, 1 min: it counts as failed",
    )
    assert not b.fetch(), "a counts on its lease"
    shell.pass_time(LEASE_MS)
    (shown,) = table(shell).lanes
    assert (shown.state, shown.tries) == ("parked", 1)
    assert shown.reason == "a had it in work for longer than the group's consumeTimeout, 1 min"
    shell.pass_time(BACKOFF_MS)
    join(shell, "b")
    (again,) = b.fetch()
    assert (again.key, again.tries) == ("x", 1)
    assert a.done(x) == ["stale"]
    shell.replay()


def test_what_is_done_before_the_lease_is_over_counts() -> None:
    """The listener returned late, and nobody has had the lane in between."""
    shell = lead(consume_timeout_minutes=1)
    produce(shell, "x")
    a = Member(shell)
    (x,) = a.fetch(leaseMillis=LEASE_MS)
    assert "stale" in renew(a, x, 65_000)

    assert a.done(x) == ["done"]
    shell.pass_time(60_000)
    assert not table(shell).lanes


def test_each_message_of_an_attempt_has_its_own_time() -> None:
    """A renewal that completes one begins the time of the next."""
    shell = lead(consume_timeout_minutes=1)
    produce(shell, "x", "x", "x")
    a = Member(shell)
    (x,) = a.fetch(maxPerLane=3, leaseMillis=LEASE_MS)

    for offset in (0, 1):
        assert renew(a, x, 50_000) == ["renewed"]
        assert a.say("renew", x, offset=offset).verdict == "renewed"
    assert renew(a, x, 50_000) == ["renewed"]
    assert "stale" in renew(a, x, 15_000)
    shell.replay()


@pytest.mark.parametrize(("policy", "state"), [("Continue", None), ("HoldKey", "held")])
def test_a_message_that_always_hangs_is_dead_in_the_end(policy: str, state: str | None) -> None:
    """As one that fails: after as many tries as the group allows."""
    shell = lead(consume_timeout_minutes=1, retry_max_times=2, on_dead_letter=policy)
    produce(shell, "x", body=b"hangs")
    a = Member(shell)
    for _ in range(2):
        hang(a)
        shell.pass_time(BACKOFF_MS)
        join(shell, "a")

    shown = table(shell).lanes
    assert [each.state for each in shown] == ([] if state is None else [state])
    assert letters(shell) == ([b"hangs"] if state is None else [])


def test_a_new_leader_counts_from_the_start_of_its_term() -> None:
    """Longer than the group says, never shorter."""
    shell = lead(consume_timeout_minutes=1)
    produce(shell, "x")
    a = Member(shell)
    (x,) = a.fetch(leaseMillis=LEASE_MS)
    renew(a, x, 50_000)

    shell.lead()
    join(shell, "a")

    assert renew(a, x, 50_000) == ["renewed"]
    assert "stale" in renew(a, x, 15_000)


def test_a_group_may_have_no_bound() -> None:
    """With 0 a listener may run for ever."""
    shell = lead(consume_timeout_minutes=0)
    produce(shell, "x")
    a = Member(shell)
    (x,) = a.fetch(leaseMillis=LEASE_MS)

    assert renew(a, x, 1_200_000) == ["renewed"]
    assert keys(a.fetch()) == []
