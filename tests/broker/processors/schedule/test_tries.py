"""The number of tries in a message, from clients and from other clusters."""

import pytest

from orderlymq_protocol.codes import RequestCode
from orderlymq_protocol.message.record import RecordTemplate, encode_with_positions, pack_host
from tests.broker.processors.driver import BOB, Shell
from tests.broker.processors.requests import messages, properties, pull, send
from tests.broker.processors.schedule.test_retries import hand_back, ready

MOST = 2**31 - 1


def copied(shell: Shell, times: int) -> None:
    """Store a copy of another cluster's message with the number of tries that it has there."""
    record = RecordTemplate(
        topic=b"orders",
        queue_id=0,
        body=b"paid",
        properties=properties(UNIQ_KEY="U").encode(),
        flag=0,
        sys_flag=0,
        born_timestamp=1,
        born_host=pack_host("192.0.2.7", 1),
        store_timestamp=2,
        store_host=pack_host("192.0.2.8", 2),
        reconsume_times=times,
    )
    fields = {"topic": "orders", "queueId": "0"}
    body = encode_with_positions(record, 0, 0)
    assert shell.call(RequestCode.ORDERLYMQ_APPEND_COPIES, fields, body).code == 0


@pytest.mark.parametrize("is_copied", [False, True])
@pytest.mark.parametrize("times", [-MOST - 1, -30, -7, -3, MOST - 1, MOST])
def test_a_message_fails_once_more_however_often_it_says_that_it_was_tried(
    shell: Shell, times: int, *, is_copied: bool
) -> None:
    """Law: any number of tries in a message leads to its next try or dead letter, and costs no consumer its connection."""
    ready(shell, retry_max_times=MOST)
    if is_copied:
        copied(shell, times)
    else:
        assert send(shell, props=properties(UNIQ_KEY="U"), j=times).code == 0

    assert [hand_back(shell, 0) for _ in range(2)] == [0, 0]

    shell.pass_time(10_100 if times < 0 else 7_300_000, step=10_100)
    topic = "%DLQ%billing" if times == MOST else "%RETRY%billing"
    (copy,) = messages(pull(shell, topic=topic))
    assert copy.reconsume_times == (1 if times < 0 else MOST)
    assert hand_back(shell, copy.physical_offset) == 0


@pytest.mark.parametrize("first_came", [True, False])
def test_a_clients_own_copy_that_has_lost_its_count_of_tries_is_the_same_try(
    shell: Shell, *, first_came: bool
) -> None:
    """Law: a client's own copy without its count of tries (Java drops it on a second send) is the same try."""
    ready(shell)
    send(shell, body=b"x", props=properties(UNIQ_KEY="U"))
    if first_came:
        hand_back(shell, 0)

    text = properties(UNIQ_KEY="U", RETRY_TOPIC="orders", DELAY="3")
    assert send(shell, "%RETRY%billing", b"x", text, caller=BOB).code == 0
    shell.pass_time(40_000, step=1_000)

    (copy,) = messages(pull(shell, topic="%RETRY%billing"))
    assert (copy.body, copy.reconsume_times) == (b"x", 1)
