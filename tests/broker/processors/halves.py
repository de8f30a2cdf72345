"""Half messages as producers write them, for tests of transactions."""

from typing import Any

from orderlymq_broker.state.records import TopicSet
from orderlymq_protocol.body import fastjson
from orderlymq_protocol.frame.command import RemotingCommand
from orderlymq_protocol.message.record import StoredMessage, decode_record
from tests.broker.processors.driver import ALICE, Shell
from tests.broker.processors.requests import bodies, create, properties, pull, send

COMMIT, ROLLBACK, UNKNOWN = 8, 12, 0
GROUP = "PGTXA4b"


def half_properties(key: str = "U1", **more: str) -> str:
    return properties(KEYS="c1", TRAN_MSG="true", UNIQ_KEY=key, PGROUP=GROUP, **more)


def begin(
    shell: Shell,
    body: bytes = b"paid",
    key: str = "U1",
    *,
    topic: str = "orders",
    queue: int = 0,
    **more: str,
) -> tuple[int, int]:
    """Send a half message; return its offset among the half messages and its physical offset."""
    reply = send(shell, topic, body, half_properties(key, **more), a=GROUP, e=queue, f=4)
    assert reply.code == 0, reply.remark
    return int(reply.ext["queueOffset"]), int(reply.ext["msgId"][16:], 16)


def end_ext(
    half: tuple[int, int], choice: int, group: str = GROUP, message_id: str = ""
) -> dict[str, str]:
    return {
        "producerGroup": group,
        "tranStateTableOffset": str(half[0]),
        "commitLogOffset": str(half[1]),
        "commitOrRollback": str(choice),
        "fromTransactionCheck": "false",
        "msgId": message_id,
    }


def end(shell: Shell, half: tuple[int, int], choice: int, **more: str) -> RemotingCommand:
    return shell.call(37, end_ext(half, choice, **more))


def found(shell: Shell, topic: str = "orders", queue: int = 0) -> list[bytes]:
    reply = pull(shell, topic=topic, queue=queue)
    return bodies(reply) if reply.body else []


def questions(shell: Shell) -> list[tuple[int, RemotingCommand]]:
    """Return the checks that were sent so far, and forget them."""
    asked = [(s.connection, s.command) for s in shell.sent if s.command.code == 39]
    shell.sent = [s for s in shell.sent if s.command.is_response or s.command.code != 39]
    return asked


def producer_body(client: str, group: str = GROUP) -> bytes:
    """Return the heartbeat body of a producer."""
    body = {"clientID": client, "consumerDataSet": [], "producerDataSet": [{"groupName": group}]}
    return fastjson.dumps(body)


def join(shell: Shell, *, client: str = "c1", caller: Any = ALICE, group: str = GROUP) -> None:
    """Send the heartbeat of a producer."""
    assert shell.call(34, {}, producer_body(client, group), caller=caller).code == 0


def stored_at(shell: Shell, *physical: int) -> list[StoredMessage]:
    found = []
    for offset in physical:
        reply = shell.call(33, {"offset": str(offset)})
        assert reply.code == 0, reply.remark
        found.append(decode_record(reply.body))
    return found


def with_orders(shell: Shell) -> Shell:
    """Give a leader the ordered topic orders of two queues."""
    create(shell, TopicSet("orders", 2, 2, order=True))
    return shell
