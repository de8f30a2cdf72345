"""Dead letters, in all ways by which they are made."""

import pytest

from orderlymq_broker.state.records import GroupSet, TopicSet
from tests.broker.processors.driver import Shell
from tests.broker.processors.requests import bodies, create, properties, pull, send, send_ext

LETTERS = "%DLQ%billing"


@pytest.mark.parametrize("sends", [False, True], ids=["handed back", "sent by the client"])
def test_a_dead_letter_counts_when_it_is_stored_and_once(shell: Shell, sends: bool) -> None:
    """Law: a dead letter counts once, when it is stored; a lost one does not count, and its repeat does not count again.

    Java's orderly consumers send theirs themselves.
    """
    names = ("orders", "%RETRY%billing", LETTERS)
    create(shell, *(TopicSet(name, 1, 1) for name in names), GroupSet("billing", retry_max_times=1))
    send(shell, props=properties(UNIQ_KEY="U"))
    counters = shell.core.context.counters

    def hand_over() -> int:
        if sends:
            text = properties(UNIQ_KEY="U", RETRY_TOPIC="orders")
            return shell.submit(310, send_ext("%RETRY%billing", text, j=16, l=1), b"x")
        return shell.submit(36, {"offset": "0", "group": "billing", "delayLevel": "-1"})

    hand_over()
    shell.lose_proposals()
    assert counters["dead_letters"] == 0

    opaques = [hand_over(), hand_over()]
    shell.settle()

    replies = [shell.reply_to(opaque) for opaque in opaques]
    assert [reply and reply.code for reply in replies] == [0, 0]
    assert len(bodies(pull(shell, topic=LETTERS))) == counters["dead_letters"] == 1
