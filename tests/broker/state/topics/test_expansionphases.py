"""What each record of an expansion does to a topic, and what blocks a switch."""

from cProfile import Profile
from typing import Any

import pytest
from msgspec.structs import replace

from orderlymq_broker.state.groups.lockrecords import LocksReleased, LocksRequested
from orderlymq_broker.state.groups.parkedkeyrecords import KeyParked
from orderlymq_broker.state.records import (
    Commit,
    GroupSet,
    MemberLeft,
    MemberSeen,
    OffsetsCommitted,
    OffsetsReset,
    QueueFloor,
    Record,
    Refused,
    RetentionAdvanced,
    Subscription,
    TopicDeleted,
    TopicSet,
)
from orderlymq_broker.state.tables import TableWrites
from orderlymq_broker.state.topics import expansionphases
from orderlymq_broker.state.topics.expansionphases import (
    NO_QUEUE,
    Blocker,
    blockers,
    farthest,
    offsets_given,
    readers_of,
    switch,
)
from orderlymq_broker.state.topics.expansionrecords import (
    ExpansionAborted,
    ExpansionFenced,
    ExpansionMoved,
    ExpansionOpened,
    ExpansionPhase,
    ExpansionPropagated,
    ExpansionSwitched,
)
from orderlymq_broker.state.topics.expansiontable import Expansion
from orderlymq_broker.state.transactions.halfrecords import HalfOpened
from orderlymq_protocol.plurals import counted
from tests.broker.state.entries import WALL_MS, Replica

OPEN, FENCED = ExpansionPhase.OPEN, ExpansionPhase.FENCED
SWITCHED, PROPAGATING = ExpansionPhase.SWITCHED, ExpansionPhase.PROPAGATING

TOPIC = TopicSet("orders", 2, 2, order=True)
FENCE = ExpansionFenced("orders", 1, 8, 4, 60_000)
ABORT = ExpansionAborted("orders", 1, "too slow")
SWITCH = ExpansionSwitched("orders", 1, 8, 4, keeps_ends=True)
PROPAGATE = ExpansionPropagated("orders", 8, 40_000)
OPENED = ExpansionOpened("orders")


def expansion(replica: Replica) -> Expansion | None:
    """Return the state of the topic's expansion; the topic agrees with it, also after a restart."""
    found = replica.state.expansions.by_topic.get("orders")
    for each in (replica, replica.restarted()):
        topic = each.state.topics.get("orders")
        assert topic is None or topic.expansion == found
    return found


def queues_of(replica: Replica) -> tuple[int, int]:
    config = replica.state.topics.by_name["orders"].config
    return config.read_queues, config.write_queues


def refused(replica: Replica, record: Record) -> bool:
    """Apply a record and return whether it was refused; a refusal must change nothing."""
    before = (expansion(replica), replica.state.topics.version.row())
    (outcome,) = replica.take(record)
    assert not isinstance(outcome, Refused) or before == (
        expansion(replica),
        replica.state.topics.version.row(),
    )
    return isinstance(outcome, Refused)


def found(replica: Replica) -> list[Blocker]:
    return farthest(blockers(replica.state, replica.state.topics.by_name["orders"]), 9)


def lacks(group: str, queue: int, messages: int, online: str = "nobody online") -> Blocker:
    text = f"group {group} has {counted(messages, 'message')} of queue {queue} left to consume, {online}"
    return Blocker(group, queue, messages, text)


def member(group: str, client: str = "c", **fields: Any) -> MemberSeen:
    return MemberSeen(group, client, "h:1", subscriptions=(Subscription("orders"),), **fields)


def lock(group: str, *queues: int) -> LocksRequested:
    places = tuple(("orders", queue) for queue in queues)
    return LocksRequested(group, "c", "h:1", 1_000, places)


BROADCASTER = member("g", message_model="BROADCASTING")


# -- phases ----------------------------------------------------------------------------------------


def test_each_phase_keeps_what_it_needs_and_nothing_of_the_one_before(replica: Replica) -> None:
    """Law: each phase (fence, switch, settling, open) keeps only what it needs, with the right queues to read and write."""
    replica.take(TOPIC)
    replica.append(replica.topic_id(), 1)

    assert replica.take(FENCE) == [ExpansionMoved("orders", FENCED, changed=True)]
    assert expansion(replica) == Expansion(
        "orders", FENCED, 0, 8, 4, 1, ((0, 0), (1, 1)), 60_000, WALL_MS
    )
    assert queues_of(replica) == (4, 2)

    assert replica.take(SWITCH) == [ExpansionMoved("orders", SWITCHED, changed=True)]
    switched = Expansion(
        "orders",
        SWITCHED,
        8,
        attempt=1,
        since_ms=WALL_MS,
        grown_ms=WALL_MS,
        grown_barriers=((0, 0), (1, 1)),
    )
    assert expansion(replica) == switched
    assert queues_of(replica) == (4, 4)

    assert replica.take(PROPAGATE) == [ExpansionMoved("orders", PROPAGATING, changed=True)]
    assert expansion(replica) == replace(switched, phase=PROPAGATING, limit_ms=40_000)

    assert replica.take(OPENED) == [ExpansionMoved("orders", OPEN, changed=True)]
    assert expansion(replica) == replace(switched, phase=OPEN)
    assert queues_of(replica) == (4, 4)


@pytest.mark.parametrize(("reason", "kept"), [("too slow", "too slow"), ("", "given up")])
def test_an_aborted_expansion_leaves_the_old_list_and_a_reason(
    replica: Replica, reason: str, kept: str
) -> None:
    """Law: an aborted expansion keeps the old queue list, the attempt's number and a reason."""
    replica.take(TOPIC, FENCE, SWITCH, PROPAGATE, OPENED)
    replica.take(ExpansionFenced("orders", 2, 16, 9, 60_000))
    assert queues_of(replica) == (9, 4)

    assert replica.take(ExpansionAborted("orders", 2, reason)) == [
        ExpansionMoved("orders", OPEN, changed=True)
    ]

    assert expansion(replica) == Expansion(
        "orders",
        OPEN,
        8,
        attempt=2,
        since_ms=WALL_MS,
        reason=kept,
        grown_ms=WALL_MS,
        grown_barriers=((0, 0), (1, 0)),
    )
    assert queues_of(replica) == (4, 4)


@pytest.mark.parametrize(
    ("before", "record", "phase"),
    [
        ((FENCE,), FENCE, FENCED),
        ((FENCE, ABORT), ABORT, OPEN),
        ((FENCE, SWITCH), SWITCH, SWITCHED),
        ((FENCE, SWITCH), ExpansionSwitched("orders", 1, 7, 4), SWITCHED),
        ((FENCE, SWITCH, PROPAGATE), PROPAGATE, PROPAGATING),
        ((FENCE, SWITCH, PROPAGATE, OPENED), PROPAGATE, OPEN),
        ((FENCE, SWITCH, PROPAGATE, OPENED), SWITCH, OPEN),
    ],
)
def test_what_was_done_already_is_answered_with_the_phase_and_changes_nothing(
    replica: Replica, before: tuple[Record, ...], record: Record, phase: ExpansionPhase
) -> None:
    """Law: a repeated or outdated request is answered with the present phase and changes nothing;
    an operator may have crashed.
    """
    replica.take(TOPIC, *before)
    kept = expansion(replica)

    assert replica.take(record) == [ExpansionMoved("orders", phase)]

    assert expansion(replica) == kept


@pytest.mark.parametrize(
    ("before", "record"),
    [
        # Another attempt while one is under way, and the same one after its fence is over.
        ((FENCE,), ExpansionFenced("orders", 2, 16, 8, 60_000)),
        ((FENCE, SWITCH), FENCE),
        # Attempt numbers rise and lists grow.
        ((), ExpansionFenced("orders", 0, 8, 4, 60_000)),
        ((FENCE, ABORT), FENCE),
        ((FENCE, SWITCH, PROPAGATE, OPENED), ExpansionFenced("orders", 2, 8, 4, 60_000)),
        ((FENCE, SWITCH, PROPAGATE, OPENED), ExpansionFenced("orders", 2, 7, 4, 60_000)),
        ((), ExpansionFenced("orders", 1, 8, 1, 60_000)),
        # Nothing to abort, another attempt than the present one, and an abort after the switch.
        ((), ABORT),
        ((FENCE,), ExpansionAborted("orders", 2, "")),
        ((FENCE, SWITCH), ABORT),
        ((FENCE, SWITCH, PROPAGATE), ABORT),
        # A switch without a fence, of another attempt, to another list, or after the fence is over.
        ((), SWITCH),
        ((FENCE,), ExpansionSwitched("orders", 2, 8, 4)),
        ((FENCE,), ExpansionSwitched("orders", 1, 9, 4)),
        ((FENCE, ABORT), SWITCH),
        ((FENCE, SWITCH), ExpansionSwitched("orders", 1, 9, 5)),
        # A list that is not the valid one, and settling that has not begun.
        ((), PROPAGATE),
        ((FENCE,), PROPAGATE),
        ((FENCE, SWITCH), ExpansionPropagated("orders", 9, 40_000)),
        ((FENCE, SWITCH), ExpansionPropagated("orders", 7, 40_000)),
        ((), OPENED),
        ((FENCE,), OPENED),
        ((FENCE, SWITCH), OPENED),
        ((FENCE, SWITCH, PROPAGATE, OPENED), OPENED),
    ],
)
def test_a_step_that_does_not_follow_from_the_phase_is_refused(
    replica: Replica, before: tuple[Record, ...], record: Record
) -> None:
    """Law: a step that does not follow from the present phase is refused and changes nothing."""
    replica.take(TOPIC, *before)

    assert refused(replica, record)


def test_a_topic_without_order_does_not_expand(replica: Replica) -> None:
    """Law: a topic that is not ordered does not expand; its queues are configured directly."""
    replica.take(TopicSet("orders", 2, 2))

    assert refused(replica, FENCE)
    assert replica.take(SWITCH) == [Refused("topic[orders] is not an ordered topic")]
    assert expansion(replica) is None


def test_an_expansion_may_leave_a_raft_group_with_the_queues_it_has(replica: Replica) -> None:
    """Law: a broker group may keep its number of queues in an expansion, because the list grows elsewhere.

    The first attempt has any number above 0.
    """
    replica.take(TOPIC)

    assert not refused(replica, ExpansionFenced("orders", 1, 1, 2, 60_000))
    assert not refused(replica, ExpansionSwitched("orders", 1, 1, 2))
    assert queues_of(replica) == (2, 2)


def test_a_given_up_expansion_is_followed_by_a_later_attempt(replica: Replica) -> None:
    """Law: after an aborted expansion, the same list may be tried again with a greater attempt number."""
    replica.take(TOPIC, FENCE, ABORT)

    assert not refused(replica, ExpansionFenced("orders", 2, 8, 4, 60_000))


def test_a_switch_makes_a_missing_topic_with_the_permission_it_says(replica: Replica) -> None:
    """Law: a switch creates a missing topic as ordered, with the permission that it names;
    readers begin at offset 0 of each queue.
    """
    record = ExpansionSwitched("orders", 3, 8, 2, ("g",), 4, keeps_ends=True)

    assert replica.take(record) == [ExpansionMoved("orders", SWITCHED, changed=True)]

    config = replica.state.topics.by_name["orders"].config
    assert config == TopicSet("orders", 2, 2, 4, order=True)
    assert expansion(replica) == Expansion(
        "orders", SWITCHED, 8, attempt=3, since_ms=WALL_MS, grown_ms=WALL_MS, grown_barriers=()
    )
    assert dict(replica.state.offsets.of_group("g")) == {"orders": {0: 0, 1: 0}}


def test_readers_get_an_offset_in_each_new_queue_and_in_no_other(replica: Replica) -> None:
    """Law: a switch gives readers an offset in each new queue: the named ones and those known here.

    An offset that exists is kept.
    """
    replica.take(TOPIC, GroupSet("here"), GroupSet("ahead"), member("here"), FENCE)
    replica.take(OffsetsReset((Commit("ahead", "orders", 3, 5),)))

    replica.take(ExpansionSwitched("orders", 1, 8, 4, ("elsewhere",)))

    offsets = replica.state.offsets
    kept = {group: dict(offsets.of_group(group)) for group in ("ahead", "elsewhere", "here")}
    assert kept == {
        "ahead": {"orders": {2: 0, 3: 5}},
        "elsewhere": {"orders": {2: 0, 3: 0}},
        "here": {"orders": {2: 0, 3: 0}},
    }


def test_an_expansion_goes_with_its_topic(replica: Replica) -> None:
    """Law: an expansion is deleted with its topic; a row that stayed would prevent the next start."""
    replica.take(TOPIC, FENCE)

    replica.take(TopicDeleted("orders"))

    assert expansion(replica.restarted()) is None


# -- who is in the way -----------------------------------------------------------------------------


def test_a_blocked_switch_names_who_is_farthest_behind(replica: Replica) -> None:
    """Law: a blocked switch names the blocker that is farthest behind; the topic stays fenced with its old queues."""
    replica.take(TOPIC, GroupSet("g", orderly=True), lock("g", 0, 1))
    for queue in (0, 1, 1):
        replica.append(replica.topic_id(), queue)
    replica.take(FENCE)
    kept = expansion(replica)

    assert replica.take(SWITCH) == [
        Refused(f"topic[orders] is not drained: {lacks('g', 1, 2).reason}")
    ]

    assert (expansion(replica), queues_of(replica)) == (kept, (4, 2))
    assert found(replica) == [lacks("g", 1, 2), lacks("g", 0, 1)]


def test_readers_are_those_who_subscribe_committed_or_locked(replica: Replica) -> None:
    """Law: a topic's readers are the consumer groups that subscribe to it, committed in it or locked it, sorted by name."""
    replica.take(TOPIC, TopicSet("t", 2, 2))
    replica.take(*(GroupSet(name) for name in ("committed", "locked", "online", "other")))
    replica.take(
        member("online"), MemberSeen("other", "o", "h:1", subscriptions=(Subscription("t"),))
    )
    replica.take(
        OffsetsCommitted((Commit("committed", "orders", 0, 0), Commit("other", "t", 0, 0)))
    )
    replica.take(lock("locked", 0), LocksReleased("locked", "c", None))
    replica.take(lock("online", 1), LocksRequested("other", "o", "h:1", 1_000, (("t", 0),)))

    assert readers_of(replica.state, "orders") == ["committed", "locked", "online"]


def test_groups_of_other_topics_cost_the_search_for_readers_next_to_nothing(
    replica: Replica,
) -> None:
    """Law: the search for readers does not grow with consumer groups of other topics;
    40,000 of them took the leader 60 ms each time.
    """
    replica.take(TOPIC, TopicSet("t", 2, 2))
    calls: list[int] = []
    for begin in (0, 50):
        groups = [f"group-{number}" for number in range(begin, begin + 50)]
        replica.take(OffsetsCommitted(tuple(Commit(group, "t", 0, 1) for group in groups)))
        profile = Profile()
        profile.runcall(readers_of, replica.state, "orders")
        calls.append(sum(entry.callcount for entry in profile.getstats()))

    assert calls[0] == calls[1]


def _readers(replica: Replica, queues: int, groups: int) -> list[str]:
    """Let ordered consumer groups read a topic with one message in each queue."""
    replica.take(replace(TOPIC, read_queues=queues, write_queues=queues))
    for number in range(queues):
        replica.append(replica.topic_id(), number)
    names = [f"group-{number}" for number in range(groups)]
    for name in names:
        replica.take(GroupSet(name, orderly=True), member(name))
    return names


def _switched_calls(replica: Replica, queues: int, outcome: type[Any]) -> int:
    record = replace(SWITCH, total=queues + 1, queues=queues + 1)
    profile = Profile()
    found = profile.runcall(switch, replica.restarted().state, record, WALL_MS, TableWrites())
    assert type(found) is outcome
    return sum(entry.callcount for entry in profile.getstats())


def test_a_switch_that_is_refused_compares_some_blockers_alone(
    replica: Replica, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Law: a refused switch compares only some blockers, because the leader sends no heartbeats meanwhile."""
    monkeypatch.setattr(expansionphases, "BLOCKERS_COMPARED_MAX", 100)
    queues, groups = 100, 50
    _readers(replica, queues, groups)
    replica.take(replace(FENCE, total=queues + 1, queues=queues + 1))

    assert _switched_calls(replica, queues, Refused) < queues * groups // 2


def test_a_switch_looks_up_only_offsets_that_are_there(replica: Replica) -> None:
    """Law: a switch looks up existing offsets only, not one per queue and consumer group."""
    queues, groups = 100, 50
    names = _readers(replica, queues, groups)
    topic = replica.topic_id()
    taken = tuple(QueueFloor(topic, number, 1) for number in range(queues))
    replica.take(RetentionAdvanced(taken[1:], 0))
    replica.take(OffsetsCommitted(tuple(Commit(name, "orders", 0, 1) for name in names)))
    replica.take(replace(FENCE, total=queues + 1, queues=queues + 1))

    assert _switched_calls(replica, queues, ExpansionMoved) < queues * groups


@pytest.mark.parametrize(
    ("records", "blocks"),
    [
        # Ordered by configuration, by a lock, or not known yet.
        ((GroupSet("g", orderly=True), member("g")), True),
        ((GroupSet("g"), member("g"), lock("g", 0)), True),
        ((GroupSet("g"), member("g")), True),
        ((GroupSet("g"), member("g"), OffsetsCommitted((Commit("g", "orders", 1, 0),))), True),
        # A group that committed without a lock has no order to lose, even if its member has left.
        ((GroupSet("g"), member("g"), OffsetsCommitted((Commit("g", "orders", 1, 1),))), False),
        ((GroupSet("g"), OffsetsCommitted((Commit("g", "orders", 1, 0),))), False),
        ((GroupSet("g", orderly=True), BROADCASTER), False),
        # A broadcasting member reads for itself, another one in order; a group by key has nothing to wait for.
        ((GroupSet("g"), BROADCASTER, replace(lock("g", 0), orderly=False)), False),
        ((GroupSet("g"), BROADCASTER, replace(lock("g", 0), client_id="away")), True),
        ((GroupSet("g", orderly=True), BROADCASTER, member("g", "d"), lock("g", 0)), True),
        ((GroupSet("g", orderly=True), BROADCASTER, member("g", "d")), True),
        ((GroupSet("g", concurrency="Key"), BROADCASTER, member("g", "d")), True),
        ((GroupSet("g", concurrency="Key"), BROADCASTER), True),
    ],
)
def test_groups_are_waited_for_when_they_consume_in_order_or_may(
    replica: Replica, records: tuple[Record, ...], blocks: bool
) -> None:
    """Law: a switch waits for consumer groups that consume in order or may do so;
    not for unordered ones or those whose members all broadcast.
    """
    replica.take(TOPIC)
    replica.append(replica.topic_id(), 0)

    replica.take(*records)

    assert ([each.queue_id for each in found(replica)] == [0]) is blocks


@pytest.mark.parametrize("with_mixed", [False, True])
def test_a_switch_of_a_former_release_waits_for_no_group_with_a_broadcasting_member(
    replica: Replica, with_mixed: bool
) -> None:
    """Law: a switch of an older release waits for no group with a broadcasting member,
    so that an old log gives the same state. The present release waits for the other members.
    """
    replica.take(TOPIC, GroupSet("g", orderly=True), BROADCASTER, member("g", "d"))
    replica.append(replica.topic_id(), 0)
    replica.take(FENCE)

    assert refused(replica, replace(SWITCH, with_mixed=with_mixed)) is with_mixed


def test_a_group_that_is_not_waited_for_hides_nobody_behind_it(replica: Replica) -> None:
    """Law: a consumer group that is not waited for does not hide others; each is checked by itself."""
    replica.take(TOPIC, GroupSet("a"), GroupSet("b", orderly=True), GroupSet("c", orderly=True))
    replica.append(replica.topic_id(), 0)
    replica.take(OffsetsCommitted((Commit("a", "orders", 0, 0), Commit("b", "orders", 0, 0))))
    replica.take(OffsetsCommitted((Commit("c", "orders", 0, 1),)))

    assert found(replica) == [lacks("b", 0, 1)]


@pytest.mark.parametrize(
    ("clients", "online"),
    [((), "nobody online"), (("c",), "1 member online"), (("c", "d"), "2 members online")],
)
def test_a_blocker_says_how_many_members_could_do_something_about_it(
    replica: Replica, clients: tuple[str, ...], online: str
) -> None:
    """Law: a blocker says how many members are online, so that a person knows whether to wait."""
    replica.take(TOPIC, GroupSet("g", orderly=True), lock("g", 0))
    replica.append(replica.topic_id(), 0)

    replica.take(*(member("g", client) for client in clients))

    assert found(replica) == [lacks("g", 0, 1, online)]


@pytest.mark.parametrize(
    ("committed", "holds", "left"),
    [
        # A holder may still have messages that retention took; others begin where the queue does.
        (1, True, 4),
        (1, False, 2),
        (None, True, 5),
        (None, False, 2),
        (4, True, 1),
        (4, False, 1),
        (5, True, 0),
        (9, True, 0),
    ],
)
def test_what_is_left_of_a_queue_begins_at_the_commit_or_where_retention_ended(
    replica: Replica, committed: int | None, holds: bool, left: int
) -> None:
    """Law: remaining messages count from the committed offset, or from where retention ended (five messages came,
    three were taken).
    """
    replica.take(TOPIC, GroupSet("g", orderly=True), member("g"))
    for _ in range(5):
        replica.append(replica.topic_id(), 0)
    replica.take(RetentionAdvanced((QueueFloor(replica.topic_id(), 0, 3),)))
    if holds:
        replica.take(lock("g", 0))
    if committed is not None:
        replica.take(OffsetsReset((Commit("g", "orders", 0, committed),)))

    wanted = [lacks("g", 0, left, "1 member online")] if left else []
    assert found(replica) == wanted


def test_retries_parked_keys_and_open_transactions_are_in_the_way(replica: Replica) -> None:
    """Law: retries, parked keys and open transactions block a switch, with their number; those of other topics do not."""
    replica.take(TOPIC, TopicSet("t", 1, 1), TopicSet("%RETRY%g", 2, 2), TopicSet("%RETRY%h", 1, 1))
    replica.take(
        GroupSet("g", orderly=True), GroupSet("h", orderly=True), lock("g", 0), lock("h", 1)
    )
    replica.take(LocksRequested("g", "c", "h:1", 1_000, (("t", 0),)))
    for queue in (0, 1, 1):
        replica.append(replica.topic_id("%RETRY%g"), queue)
    for place, key in (("orders", "k"), ("orders", "l"), ("t", "k")):
        replica.take(KeyParked("g", place, 0, key, 0, "M", 1))
    for offset, name in enumerate(("orders", "t")):
        replica.take(HalfOpened(offset, 0, "p", name, f"U{offset}", WALL_MS))

    assert found(replica) == [
        Blocker("g", NO_QUEUE, 3, "group g has 3 messages to retry, nobody online"),
        Blocker("g", NO_QUEUE, 2, "group g holds 2 keys: release with orderlymq group release"),
        Blocker(
            "",
            NO_QUEUE,
            1,
            "1 transaction of topic[orders] may still be committed: end all of them, including those that were given up",
        ),
    ]


def test_a_group_that_consumed_everything_is_not_in_the_way_whichever_member_left(
    replica: Replica,
) -> None:
    """Law: a consumer group that consumed everything does not block, whichever member left."""
    replica.take(TOPIC, GroupSet("g", orderly=True), member("g"), lock("g", 0, 1))
    replica.append(replica.topic_id(), 0)
    replica.take(OffsetsReset((Commit("g", "orders", 0, 1),)), MemberLeft("g", "c"))

    assert found(replica) == []


def test_a_switch_changes_nothing_of_a_topic_but_its_queues(replica: Replica) -> None:
    """Law: a switch changes only the queue numbers of an existing topic."""
    mine = TopicSet("orders", 2, 2, perm=2, order=True, attributes={"+a": "b"})
    replica.take(mine, FENCE)
    before = replica.state.topics.by_name["orders"].config

    replica.take(SWITCH)

    after = replica.state.topics.by_name["orders"].config
    assert after == replace(before, read_queues=4, write_queues=4)


def test_offsets_that_a_switch_may_give_are_counted_before(replica: Replica) -> None:
    """Law: offsets_given counts the offsets that a switch would store: one per reader and new queue."""
    missing = offsets_given(replica.state, "orders", 3, ["g"])
    replica.take(TOPIC, GroupSet("here"), member("here"))

    given = [offsets_given(replica.state, "orders", queues, ["g", "here"]) for queues in (1, 2, 4)]

    assert (missing, given) == (3, [0, 0, 4])


def test_a_switch_of_a_former_release_makes_a_topic_without_barriers(replica: Replica) -> None:
    """Law: a switch of an older release that creates the topic has no barriers, because there were no queues before."""
    replica.take(ExpansionSwitched("orders", 3, 8, 2, keeps_barriers=True))

    found = expansion(replica)
    assert found is not None
    assert found.grown_barriers == ()
