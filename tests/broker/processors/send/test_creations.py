"""Sends to a topic that a send creates."""

from orderlymq_broker.core.effects import Propose
from orderlymq_broker.state.records import TopicSet
from tests.broker.processors.driver import Shell
from tests.broker.processors.requests import bodies, pull, send_ext


def take(shell: Shell) -> list[Propose]:
    """Return what was proposed since: an entry of its own, which is not committed yet."""
    taken, shell.pending = shell.pending, []
    return taken


def commit(shell: Shell, entry: list[Propose]) -> None:
    """Commit an entry; what its answers propose comes behind what was proposed before."""
    proposed = take(shell)
    shell.pending = entry
    if entry:
        shell.turn()
    shell.pending = proposed + shell.pending


def test_sends_that_wait_for_their_topic_keep_their_order(shell: Shell) -> None:
    """Law: of one connection and queue none overtakes another, also while entries with the topic are under way."""
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
    """Law: a send that finds the topic made by somebody else waits for those before it."""
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
    """Law: while its creation is under way nobody proposes it again."""
    for body in (b"created", b"paid"):
        shell.submit(310, send_ext("orders"), body)
    shell.settle()

    made = [each for each in shell.proposed if isinstance(each, TopicSet) and each.name == "orders"]
    assert len(made) == 1


def test_each_that_waits_for_a_topic_that_is_lost_is_answered(shell: Shell) -> None:
    """Law: what waits is refused when the creation is lost, and the next leader does not wait for it."""
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
