"""Assignments that operators set: who may set them, who is notified, what members are answered."""

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from orderlymq_broker.core.effects import Caller
from orderlymq_broker.processors.groups.strategies import AssignmentRequest, assign
from orderlymq_broker.state.groups.assignment import full_assignment
from orderlymq_broker.state.records import GroupDeleted, TopicDeleted, TopicSet
from orderlymq_operator.brokers.answers import all_members
from orderlymq_operator.plan.assignment import AssignmentInput, Member, assign_queues
from orderlymq_protocol.body import fastjson
from orderlymq_protocol.body.messagequeue import MessageQueue
from orderlymq_protocol.codes import RequestCode
from orderlymq_protocol.frame.command import RemotingCommand
from tests.broker.processors.driver import ALICE, BOB, Shell
from tests.broker.processors.requests import create, heartbeat

SET = RequestCode.ORDERLYMQ_SET_ASSIGNMENT
MEMBERS = RequestCode.ORDERLYMQ_GROUP_MEMBERS


def decide(shell: Shell, owners: list[list[Any]], *, token: int = 1) -> RemotingCommand:
    ext = {"consumerGroup": "billing", "topic": "orders", "operatorToken": str(token)}
    return shell.call(SET, ext, fastjson.dumps(owners))


def group(shell: Shell) -> Any:
    return fastjson.loads(shell.call(MEMBERS, {"consumerGroup": "billing"}).body)


def lead() -> Shell:
    shell = Shell().lead()
    create(shell, TopicSet("orders", 4, 4, order=True))
    heartbeat(shell, "one@1")
    heartbeat(shell, "two@2", caller=BOB, tags="A || B")
    shell.notified()
    return shell


def test_a_decision_is_stored_and_its_group_notified_once() -> None:
    """Law: an assignment is stored, survives a restart and notifies its group; the same one again does not."""
    shell = lead()
    owners = [["broker-a", 1, "two@2"], ["broker-a", 0, "one@1"]]

    assert decide(shell, owners).code == 0
    assert shell.notified() == [ALICE.connection, BOB.connection]
    assert decide(shell, owners).code == 0
    assert shell.notified() == []

    found = {("broker-a", 0): "one@1", ("broker-a", 1): "two@2"}
    assert shell.restart().state.assignments.get("billing", "orders") == found
    assert group(shell)["assignments"] == {"orders": sorted(owners)}
    shell.replay()


def test_an_operator_learns_of_all_members_at_once() -> None:
    """Law: an operator gets all members in one answer; a client in two groups is named for each."""
    shell = lead()
    heartbeat(shell, "one@1", group="audit")

    body = shell.call(MEMBERS, {}).body

    alice, bob = (f"{caller.host}:{caller.port}" for caller in (ALICE, BOB))
    assert fastjson.loads(body)["members"] == [["one@1", alice], ["one@1", alice], ["two@2", bob]]
    assert all_members(body) == {"one@1": {alice}, "two@2": {bob}}


def test_a_stale_operator_decides_nothing() -> None:
    """Law: an operator with an older token changes no assignment."""
    shell = lead()
    decide(shell, [["broker-a", 0, "one@1"]], token=5)

    assert decide(shell, [["broker-a", 0, "two@2"]], token=4).code == 1
    assert shell.state.assignments.get("billing", "orders") == {("broker-a", 0): "one@1"}


def test_a_decision_without_owners_ends_it_and_deletions_take_it_along() -> None:
    """Law: an assignment without owners, or a deletion of topic or group, ends it; members use their strategy again."""
    owners = [["broker-a", 0, "one@1"]]
    shell = lead()
    decide(shell, owners)
    decide(shell, [])
    assert shell.state.assignments.get("billing", "orders") is None
    for record in (TopicDeleted("orders"), GroupDeleted("billing")):
        shell = lead()
        decide(shell, owners)
        create(shell, record)
        assert shell.state.assignments.get("billing", "orders") is None


def test_a_repairing_notice_changes_nothing() -> None:
    """Law: the action "notify" only notifies the group again."""
    shell = lead()
    before = shell.state.digest()
    ext = {"consumerGroup": "billing", "action": "notify", "operatorToken": "0"}

    assert shell.call(SET, ext).code == 0
    assert shell.notified() == [ALICE.connection, BOB.connection]
    assert shell.state.digest() == before


def test_members_are_shown_each_with_its_own_subscriptions() -> None:
    """Law: each member is shown with its own subscriptions, so that differing ones are found."""
    shown = {each["clientId"]: each["subscriptions"] for each in group(lead())["members"]}

    assert shown["one@1"] != shown["two@2"]
    assert ["orders", "A || B", "TAG"] in shown["two@2"]


def test_the_members_of_a_large_group_are_written_bit_by_bit() -> None:
    """Law: the members of a large group are written in steps, because heartbeats may have hundreds of KiB each."""
    shell = Shell().lead()
    for number in range(300):
        caller = Caller(20 + number, "192.0.2.20", 50_000 + number)
        assert heartbeat(shell, f"c{number:03}", caller=caller, tags="a" * 15_000).code == 0

    opaque = shell.submit(MEMBERS, {"consumerGroup": "billing"})

    assert shell.reply_to(opaque) is None
    shell.settle()
    found = shell.reply_to(opaque)
    assert found is not None
    members = fastjson.loads(found.body)["members"]
    assert [each["clientId"] for each in members] == [f"c{number:03}" for number in range(300)]


def test_nonsense_is_refused() -> None:
    """Law: a wrong assignment is refused with the reason."""
    shell = lead()
    for owners in ([["broker-a", "x", "one@1"]], [["broker-a", 0]], {"a": 1}, [["b", -1, "c"]]):
        assert decide(shell, owners).code == 1  # type: ignore[arg-type]  # on purpose


def test_a_decision_goes_before_the_strategy_that_a_client_names() -> None:
    """Law: an assignment wins over the strategy that a client names, even an unknown one."""
    queues = [MessageQueue("orders", "broker-a", number) for number in range(4)]
    decided = {("broker-a", 3): "one@1", ("broker-a", 0): "two@2"}
    for name in ("AVG", "STICKY"):
        request = AssignmentRequest("orders", "billing", "one@1", name)
        found = assign(request, queues, {"one@1": 0, "two@2": 0}, decided)
        assert found is not None
        assert [queue.queue_id for queue in found] == [1, 3]


_PLACES = st.builds(lambda n: [("b", i) for i in range(n)], st.integers(1, 12))
_MEMBERS = st.dictionaries(st.sampled_from("abcdefgh"), st.integers(0, 3), max_size=6)


@given(_PLACES, _MEMBERS, st.dictionaries(st.integers(0, 15), st.sampled_from("abcdefgh")))
def test_completing_a_decision_moves_nothing_of_the_living(
    queues: list[tuple[str, int]], members: dict[str, int], decided: dict[int, str]
) -> None:
    """Law: completing an assignment gives every queue one living owner; living owners keep their queues,
    and a repeat gives the same.
    """
    division = {("b", number): owner for number, owner in decided.items()}
    found = full_assignment(division, queues, members)

    assert found.keys() == (set(queues) if members else set())
    assert set(found.values()) <= set(members)
    for queue, owner in division.items():
        if owner in members and queue in found:
            assert found[queue] == owner
    assert full_assignment(division, list(reversed(queues)), members) == found
    assert full_assignment(found, queues, members) == found


@given(_PLACES, _MEMBERS, st.dictionaries(st.integers(0, 15), st.sampled_from("abcdefgh")))
def test_brokers_complete_a_decision_as_operators_decide_it(
    queues: list[tuple[str, int]], members: dict[str, int], decided: dict[int, str]
) -> None:
    """Law: brokers complete an assignment as operators do, so that no queue moves twice."""
    division = {("b", number): owner for number, owner in decided.items()}
    places = [MessageQueue("orders", broker, number) for broker, number in queues]
    present = {MessageQueue("orders", *place): owner for place, owner in division.items()}
    group = [Member(name, since_ms=since) for name, since in members.items()]
    found = assign_queues("Sticky", "billing", AssignmentInput(places, group, present, calm=False))

    if members:
        assert full_assignment(division, queues, members) == {
            (queue.broker_name, queue.queue_id): owner for queue, owner in found.items()
        }
