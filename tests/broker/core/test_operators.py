"""The operator token on requests that any tool may send, and on requests about the process."""

import pytest

from orderlymq_broker.processors.admin.access import ADMIN_CODES
from orderlymq_broker.state.admin.accessrecords import AccountSet
from orderlymq_broker.state.records import AssignmentSet, GroupSet, TopicDeleted, TopicSet
from orderlymq_protocol.codes import RequestCode
from orderlymq_protocol.frame.command import request
from orderlymq_protocol.operatortoken import token_max_at
from tests.broker.processors.driver import ALICE, Shell
from tests.broker.processors.requests import create, send
from tests.broker.replication.simulation import SimulatedGroup
from tests.security.test_administration import Attacked

_SET_TOPIC = {
    "topic": "orders",
    "defaultTopic": "TBW102",
    "readQueueNums": "4",
    "writeQueueNums": "4",
}
_SET_TOPIC |= {"perm": "6", "topicFilterType": "SINGLE_TAG", "topicSysFlag": "0", "order": "true"}
# Changes of an operator that, if they came late, would undo a newer operator's.
_CHANGES = [
    (RequestCode.UPDATE_AND_CREATE_TOPIC, _SET_TOPIC, b""),
    (RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": "orders"}, b""),
    (RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, {}, b'{"groupName": "billing"}'),
    (RequestCode.DELETE_SUBSCRIPTIONGROUP, {"groupName": "billing", "cleanOffset": "true"}, b""),
    (
        RequestCode.UPDATE_AND_CREATE_ACL_CONFIG,
        {"accessKey": "reader", "secretKey": "another-one"},
        b"",
    ),
    (RequestCode.DELETE_ACL_CONFIG, {"accessKey": "reader"}, b""),
    (
        RequestCode.UPDATE_CONSUMER_OFFSET,
        {"consumerGroup": "billing", "topic": "orders", "queueId": "0", "commitOffset": "1"},
        b"",
    ),
    (RequestCode.UPDATE_BROKER_CONFIG, {}, b"brokerPermission=4\n"),
]

# Tokens count seconds since 2026; at earlier times they are small.
_IN_2027_MS = 1_800_000_000_000


def operate(
    shell: Shell, token: int | None, code: int, ext: dict[str, str], body: bytes = b""
) -> int:
    named = {} if token is None else {"operatorToken": str(token)}
    return shell.call(code, {**ext, **named}, body).code


@pytest.fixture
def operated() -> Shell:
    """A broker whose operator has token 7 and has created all that the requests need."""
    shell = Shell().lead()
    create(shell, TopicSet("orders", 4, 4, order=True), GroupSet("billing"))
    for code, ext, body in _CHANGES[:1] + _CHANGES[4:5]:
        assert operate(shell, 7, code, ext, body) == 0
    send(shell, "orders")
    return shell


@pytest.mark.parametrize(("code", "ext", "body"), _CHANGES)
def test_what_a_former_operator_asks_for_comes_too_late(
    operated: Shell, code: int, ext: dict[str, str], body: bytes
) -> None:
    """Law: a request of an operator that another one has followed changes nothing, on this leader and on the next."""
    before = operated.state.digest()
    assert operate(operated, 6, code, ext, body) == 1
    assert operated.state.digest() == before

    successor = operated.restart().lead()
    assert operate(successor, 6, code, ext, body) == 1
    assert operate(successor, 7, code, ext, body) == 0
    successor.replay()


@pytest.mark.parametrize(("code", "ext", "body"), _CHANGES)
def test_who_has_no_token_is_served_as_ever(
    operated: Shell, code: int, ext: dict[str, str], body: bytes
) -> None:
    """Law: a request without a token is served; mqadmin and other tools send none."""
    assert operate(operated, None, code, ext, body) == 0
    assert operated.state.operator_token == 7


def test_a_deletion_tells_every_replica_of_its_operator_before_it_deletes(operated: Shell) -> None:
    """Law: before a deletion, the same entry stores its operator's token, in a record that every release knows."""
    operated.proposed.clear()

    assert operate(operated, 8, RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": "orders"}) == 0
    assert operate(operated, 8, RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": "orders"}) == 0

    assert operated.proposed == [AssignmentSet("", "", (), 8), TopicDeleted("orders")]
    assert (operated.state.operator_token, operated.state.assignments.of_group("")) == (8, {})
    operated.replay()


def test_a_deletion_that_was_overtaken_in_one_turn_deletes_nothing(operated: Shell) -> None:
    """Law: a greater token counts as soon as it is proposed, so a deletion with a smaller one behind it is refused."""
    newer = operated.submit(
        RequestCode.UPDATE_AND_CREATE_TOPIC, {**_SET_TOPIC, "operatorToken": "9"}
    )
    older = operated.submit(215, {"topic": "orders", "operatorToken": "8"})
    operated.settle()

    codes = [reply.code for each in (newer, older) if (reply := operated.reply_to(each))]
    assert codes == [0, 1]
    assert "orders" in operated.state.topics.by_name


def test_an_operator_that_is_overtaken_while_its_group_is_made_changes_nothing(
    operated: Shell,
) -> None:
    """Law: a request that must first create its consumer group is checked again after that;
    a newer operator may have come meanwhile.
    """
    ext = {"consumerGroup": "new", "topic": "orders", "queueId": "0", "commitOffset": "1"}
    older = operated.submit(RequestCode.UPDATE_CONSUMER_OFFSET, {**ext, "operatorToken": "8"})
    newer = operated.submit(
        RequestCode.UPDATE_AND_CREATE_TOPIC, {**_SET_TOPIC, "operatorToken": "9"}
    )
    operated.settle()

    codes = [reply.code for each in (older, newer) if (reply := operated.reply_to(each))]
    assert codes == [1, 0]
    assert not operated.state.offsets.of_group("new")


def test_a_proposal_that_was_lost_is_no_operator(operated: Shell) -> None:
    """Law: the token of a proposal that was lost does not count."""
    operated.submit(215, {"topic": "orders", "operatorToken": "9"})
    operated.lose_proposals()

    assert operate(operated, 8, RequestCode.DELETE_SUBSCRIPTIONGROUP, {"groupName": "billing"}) == 0


@pytest.mark.parametrize("leader_known", [False, True])
@pytest.mark.parametrize(
    "code",
    [
        RequestCode.ORDERLYMQ_CLIENT_DEAD,
        RequestCode.ORDERLYMQ_CHANGE_QUEUES,
        RequestCode.ORDERLYMQ_SET_ASSIGNMENT,
        RequestCode.ORDERLYMQ_RELEASE_KEY,
        RequestCode.UPDATE_CONSUMER_OFFSET,
    ],
)
def test_who_does_not_lead_judges_no_token(code: int, leader_known: bool) -> None:
    """Law: a follower refuses without judging the token: its remark says that it does not lead,
    and no warning counter rises.
    """
    follower = Shell().lead().follow(leader_known=leader_known)
    follower.set_clock(_IN_2027_MS)
    for token in (str(token_max_at(_IN_2027_MS)), "none"):
        refused = follower.call(code, {"operatorToken": token})

        assert refused.code == 1
        assert "does not lead group" in (refused.remark or "")
    assert not follower.core.context.counters["impossible_operators"]


@pytest.mark.parametrize("again", [False, True])
def test_what_is_lost_while_its_group_is_made_says_so(operated: Shell, again: bool) -> None:
    """Law: a request lost while its consumer group is created is answered "does not lead", even if this replica leads again.

    Its token is not judged by time.
    """
    ext = {"consumerGroup": "new", "topic": "orders", "queueId": "0", "commitOffset": "1"}
    operated.set_clock(_IN_2027_MS)
    token = str(token_max_at(_IN_2027_MS))
    asked = operated.submit(RequestCode.UPDATE_CONSUMER_OFFSET, {**ext, "operatorToken": token})
    lost, operated.pending = operated.pending, []
    operated.follow()
    if again:
        operated.lead()
    operated.run([effect for each in lost if each.lost is not None for effect in each.lost(None)])
    operated.settle()

    refused = operated.reply_to(asked)
    assert refused is not None
    assert "does not lead group" in (refused.remark or "")
    assert not operated.core.context.counters["impossible_operators"]
    assert operated.state.operator_token == 7


def test_a_token_that_no_operator_can_have_locks_nobody_out(operated: Shell) -> None:
    """Law: an impossible token (in the future, negative, no number) is refused and does not lock out the operator."""
    for token in (str(token_max_at(operated.wall_ms, 7) + 1), "-1", "", "9" * 5_000, "seven"):
        refused = operated.call(215, {"topic": "orders", "operatorToken": token})
        assert (refused.code, operated.state.operator_token) == (1, 7), token
    assert operate(operated, 7, RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": "orders"}) == 0


def test_only_who_proves_itself_may_name_a_token() -> None:
    """Law: where operators have an account, only a signed request of it may name a token,
    so that strangers cannot lock operators out.
    """
    attacked = Attacked()
    ext = {"topic": "orders", "operatorToken": "500"}

    reply = attacked.shell.call(215, ext)

    assert (reply.code, attacked.shell.state.operator_token) == (1, 0)
    assert "signature of version 2" in str(reply.remark)
    foreign = attacked.signer(secret="the operator's secret of another cluster")
    assert attacked.judge_signed(foreign, 215, ext) is not None
    assert attacked.judge_signed(attacked.signer(), 215, ext) is None
    assert attacked.shell.call(215, {"topic": "orders"}).code == 0


@pytest.mark.parametrize("code", sorted(ADMIN_CODES | {RequestCode.UPDATE_CONSUMER_OFFSET}))
def test_no_account_of_a_client_may_name_a_token(code: int) -> None:
    """Law: an account with rights of a client may not name a token.

    Otherwise an offset commit with the greatest credible token would lock the operator out.
    """
    attacked = Attacked(enable=True)
    reader = AccountSet(
        "reader", "reader-secret", default_topic_perm="PUB|SUB", default_group_perm="SUB"
    )
    create(attacked.shell, reader)
    signer = attacked.signer("reader", "reader-secret")
    ext = {"topic": "orders", "consumerGroup": "billing", "queueId": "0", "commitOffset": "1"}

    refused = attacked.judge_signed(signer, code, {**ext, "operatorToken": "500"})

    assert f"Need admin permission for request code={code}" in str(refused)
    signed = signer.sign("b", code, {**ext, "operatorToken": "500"}, b"")
    attacked.shell.ask(code, signed)
    assert attacked.shell.state.operator_token == 0


@pytest.mark.parametrize("code", [20503, 20504])
def test_members_and_leaders_are_not_changed_by_a_former_operator(code: int) -> None:
    """Law: the serving leader also refuses membership changes and transfers of a former operator.

    These are raft's own entries without a token, so a separate record stores it.
    """
    group = SimulatedGroup()
    leader = group.elect()

    def refused(token: int) -> str | None:
        found = leader.loop.refusal(request(code, {"operatorToken": str(token)}), ALICE)
        return None if found is None else found.remark

    assert refused(7) is None
    assert "operatorToken 6 is smaller than 7" in str(refused(6)), "also before it is applied"
    group.pass_time(1.0)
    assert [each.state.operator_token for each in group.replicas.values()] == [7, 7, 7]
    assert "operatorToken 6 is smaller than 7" in str(refused(6))
    assert leader.loop.refusal(request(code), ALICE) is None
