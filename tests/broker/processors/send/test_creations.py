"""Sends to a topic that they create."""

import pytest

from orderlymq_broker.core.effects import Propose
from orderlymq_broker.processors import creations
from orderlymq_broker.settings import RaftSettings
from orderlymq_broker.state.records import TopicDeleted, TopicSet
from orderlymq_protocol.codes import ResponseCode
from tests.broker.processors.driver import Shell, settings
from tests.broker.processors.requests import bodies, pull, send_ext


def take(shell: Shell) -> list[Propose]:
    """Return the new proposals as an entry of their own that is not committed yet."""
    taken, shell.pending = shell.pending, []
    return taken


def commit(shell: Shell, entry: list[Propose]) -> None:
    """Commit an entry; new proposals of its answers come behind the earlier ones."""
    proposed = take(shell)
    shell.pending = entry
    if entry:
        shell.turn()
    shell.pending = proposed + shell.pending


def test_sends_that_wait_for_their_topic_keep_their_order(shell: Shell) -> None:
    """Law: sends of one connection and queue keep their order while their topic is being created."""
    shell.submit(310, send_ext("orders"), b"created")
    first = take(shell)
    shell.submit(310, send_ext("orders"), b"paid")
    second = take(shell)

    commit(shell, first)
    shell.submit(310, send_ext("orders"), b"shipped")
    commit(shell, second)
    shell.settle()

    assert bodies(pull(shell)) == [b"created", b"paid", b"shipped"]


def test_an_administrator_who_makes_the_topic_meanwhile_changes_no_order(shell: Shell) -> None:
    """Law: a send that finds the topic created by an administrator waits for earlier sends."""
    shell.run([Propose([TopicSet("orders", 4, 4)])])
    made = take(shell)
    shell.submit(310, send_ext("orders"), b"created")
    waited_for = take(shell)

    commit(shell, made)
    shell.submit(310, send_ext("orders"), b"paid")
    commit(shell, waited_for)
    shell.settle()

    assert bodies(pull(shell)) == [b"created", b"paid"]


def test_a_topic_is_proposed_once_for_all_that_wait_for_it(shell: Shell) -> None:
    """Law: a topic's creation is proposed once for all sends that wait for it."""
    for body in (b"created", b"paid"):
        shell.submit(310, send_ext("orders"), body)
    shell.settle()

    made = [each for each in shell.proposed if isinstance(each, TopicSet) and each.name == "orders"]
    assert len(made) == 1


def test_each_that_waits_for_a_topic_that_is_lost_is_answered(shell: Shell) -> None:
    """Law: if the creation is lost, all waiting sends are refused, and the next leader does not wait for it."""
    waiting = [shell.submit(310, send_ext("orders"), body) for body in (b"created", b"paid")]
    lost = take(shell)
    shell.follow()
    shell.lead()
    assert shell.call(310, send_ext("orders"), b"shipped").code == 0
    for proposal in lost:
        assert proposal.lost is not None
        shell.run(proposal.lost(None))

    told = [reply.code for each in waiting if (reply := shell.reply_to(each)) is not None]
    assert told == [14, 14]
    assert bodies(pull(shell)) == [b"shipped"]


def test_sends_that_wait_for_their_topic_are_bounded() -> None:
    """Law: the bytes of sends waiting for a topic are limited; beyond the limit the answer is 2 (busy)."""
    shell = Shell(settings(raft=RaftSettings(uncommitted_size_max=64 << 10))).lead()
    opaques = [shell.submit(310, send_ext("orders"), b"x" * (16 << 10)) for _ in range(9)]

    codes = [(reply := shell.reply_to(opaque)) and reply.code for opaque in opaques]

    assert codes == [None] * 3 + [ResponseCode.SYSTEM_BUSY] * 6
    shell.settle()
    assert [len(body) for body in bodies(pull(shell))] == [16 << 10] * 3
    assert shell.core.context.view.creating_bytes == 0


def test_sends_that_wait_for_their_topic_are_served_bit_by_bit_in_their_order(
    shell: Shell, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Law: thousands of waiting sends are served in steps and in order; later sends come behind them."""
    monkeypatch.setattr(creations, "SERVED_MAX", 4)
    for number in range(9):
        shell.submit(310, send_ext("orders"), b"%d" % number)
    commit(shell, take(shell))
    proposed = [len(shell.pending)]
    shell.submit(310, send_ext("orders"), b"9")
    while shell.later:
        shell.go_on()
        proposed.append(len(shell.pending))
    shell.settle()

    assert proposed == [4, 8, 10]
    assert bodies(pull(shell)) == [b"%d" % number for number in range(10)]


def test_a_topic_that_is_deleted_while_sends_are_served_is_made_again_for_them(
    shell: Shell, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Law: if the topic is deleted meanwhile, it is created again, and the order stays."""
    monkeypatch.setattr(creations, "SERVED_MAX", 2)
    for number in range(8):
        shell.submit(310, send_ext("orders"), b"%d" % number)
    commit(shell, take(shell))
    shell.run([Propose([TopicDeleted("orders")])])
    shell.turn()
    shell.settle()

    assert bodies(pull(shell)) == [b"%d" % number for number in range(2, 8)]


def test_sends_that_wait_when_the_leadership_ends_are_refused(
    shell: Shell, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Law: sends that wait when leadership ends are refused; in the next term they would come behind later ones."""
    monkeypatch.setattr(creations, "SERVED_MAX", 1)
    waiting = [shell.submit(310, send_ext("orders"), body) for body in (b"created", b"paid")]
    shell.turn()
    shell.turn()
    shell.follow()
    later, shell.later = shell.later, []
    shell.lead()
    assert shell.call(310, send_ext("orders"), b"shipped").code == 0
    shell.later = later
    shell.settle()

    told = [reply.code for each in waiting if (reply := shell.reply_to(each)) is not None]
    assert told == [0, 14]
    assert bodies(pull(shell)) == [b"created", b"shipped"]
