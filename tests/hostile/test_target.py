"""The group under attack: what its history needs for the promise to apply."""

from orderlymq_protocol.codes import RequestCode
from tests.broker.processors.adminshell import AdminShell
from tests.broker.processors.requests import properties, send
from tests.hostile.target import JUDGED_TOPIC, topic_ext


def test_the_judged_topic_stores_a_message_sent_again_once() -> None:
    """Law: the oracle judges an ordered topic; on another one, a message sent again may stand twice."""
    shell = AdminShell()
    shell.lead()
    created = shell.tool(RequestCode.UPDATE_AND_CREATE_TOPIC, b"", **topic_ext(JUDGED_TOPIC))

    first, again = (
        send(shell, JUDGED_TOPIC, b"paid", properties(UNIQ_KEY="U1"), e=0) for _ in range(2)
    )

    assert created.code == 0
    assert (first.ext["queueOffset"], again.ext["queueOffset"]) == ("0", "0")
    assert shell.state.topics.by_name[JUDGED_TOPIC].queue(0).next_offset == 1
