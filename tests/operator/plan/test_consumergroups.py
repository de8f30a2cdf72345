"""The reconcile of consumer groups: decisions, storage and repair."""

from dataclasses import replace

from orderlymq_operator.plan.assignment import ORPHAN_MS, Member
from orderlymq_operator.plan.consumergroups import (
    NOTIFY_PAUSE_MS,
    AssignmentView,
    GroupAssigner,
    NotifyMembers,
    Owners,
    SetAssignment,
)
from orderlymq_operator.resources.consumergroup import Assignment
from orderlymq_operator.resources.quantities import Duration
from orderlymq_protocol.body.messagequeue import MessageQueue

STICKY = Assignment(strategy="Sticky", rebalance_delay=Duration("10s"))
AVERAGELY = Assignment()
QUEUES = [MessageQueue("orders", "g0", 0), MessageQueue("orders", "g0", 1)]


def view(
    *names: str, stored: dict[str, Owners] | None = None, holders: dict[int, str] | None = None
) -> AssignmentView:
    group = [Member(name, subscriptions=frozenset({("orders", "*")})) for name in names]
    held = {QUEUES[number]: name for number, name in (holders or {}).items()}
    return AssignmentView(True, {"g0": group}, QUEUES, held, {"g0": stored or {}})


def test_a_first_division_is_stored_immediately_and_then_nothing_is_done() -> None:
    """Law: a group's first assignment is stored immediately, and afterwards nothing is done."""
    assigner = GroupAssigner("billing")
    owners = (("g0", 0, "a"), ("g0", 1, "b"))
    held = {0: "a", 1: "b"}

    assert assigner.decide(STICKY, view("a", "b"), 0) == [
        SetAssignment("billing", "orders", owners)
    ]
    stored = view("a", "b", stored={"orders": owners}, holders=held)
    assert assigner.decide(STICKY, stored, 100) == []
    assert assigner.decide(STICKY, stored, 10 * ORPHAN_MS) == []


def test_a_newcomer_gets_its_share_when_the_group_has_calmed_down() -> None:
    """Law: a new member gets its share only when the group is calm; it may be the first pod of a rolling restart."""
    assigner = GroupAssigner("billing")
    stored: dict[str, Owners] = {"orders": (("g0", 0, "a"), ("g0", 1, "a"))}
    both = {0: "a", 1: "a"}

    assert assigner.decide(STICKY, view("a", "b", stored=stored, holders=both), 0) == []
    later = assigner.decide(STICKY, view("a", "b", stored=stored, holders=both), 10_000)

    assert later == [SetAssignment("billing", "orders", (("g0", 0, "b"), ("g0", 1, "a")))]


def test_queues_of_who_is_gone_are_given_away_immediately() -> None:
    """Law: queues of a member that is gone are given away immediately, as brokers do without an operator."""
    assigner = GroupAssigner("billing")
    stored: dict[str, Owners] = {"orders": (("g0", 0, "a"), ("g0", 1, "b"))}

    assert assigner.decide(STICKY, view("b", stored=stored), 0) == [
        SetAssignment("billing", "orders", (("g0", 0, "b"), ("g0", 1, "b")))
    ]


def test_a_strategy_that_clients_compute_themselves_ends_a_decision() -> None:
    """Law: a strategy that clients compute themselves removes the stored assignment, which would overrule them."""
    stored: dict[str, Owners] = {"orders": (("g0", 0, "a"), ("g0", 1, "a"))}
    steps = GroupAssigner("billing").decide(AVERAGELY, view("a", stored=stored), 0)

    assert steps == [SetAssignment("billing", "orders", ())]


def test_a_queue_that_stays_without_a_holder_gets_its_group_notified_now_and_then() -> None:
    """Law: if a queue stays without a holder the group is notified after a hand-over's time, and then at intervals."""
    assigner = GroupAssigner("billing")
    lonely = view("a", "b", holders={0: "a"})

    assert assigner.decide(AVERAGELY, lonely, 0) == []
    assert assigner.decide(AVERAGELY, lonely, ORPHAN_MS - 1) == []
    assert assigner.decide(AVERAGELY, lonely, ORPHAN_MS) == [NotifyMembers("billing")]
    assert assigner.decide(AVERAGELY, lonely, ORPHAN_MS + 1_000) == []
    again = ORPHAN_MS + NOTIFY_PAUSE_MS
    assert assigner.decide(AVERAGELY, lonely, again) == [NotifyMembers("billing")]


def test_a_queue_that_a_member_is_refused_for_long_gets_its_group_notified() -> None:
    """Law: if a member is refused a queue for long (brokers report it) the group is notified."""
    assigner = GroupAssigner("billing")
    held = view("a", "b", holders={0: "a", 1: "a"})
    refused = replace(held, wanted={QUEUES[1]: "b"})

    assert assigner.decide(AVERAGELY, refused, 0) == []
    assert assigner.decide(AVERAGELY, held, ORPHAN_MS) == []
    assert assigner.decide(AVERAGELY, refused, ORPHAN_MS) == [NotifyMembers("billing")]


def test_members_that_do_not_want_a_topic_get_none_of_its_queues() -> None:
    """Law: members that do not read a topic get none of its queues."""
    odd = Member("c", subscriptions=frozenset({("other", "*")}))
    usual = Member("a", subscriptions=frozenset({("orders", "*")}))
    seen = AssignmentView(True, {"g0": [usual, odd]}, QUEUES, {}, {"g0": {}})

    assert GroupAssigner("billing").decide(STICKY, seen, 0) == [
        SetAssignment("billing", "orders", (("g0", 0, "a"), ("g0", 1, "a")))
    ]
