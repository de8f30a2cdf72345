"""`message show` and `trace` distinguish what does not exist from what could not be asked."""

import asyncio
import json

import pytest
from click.testing import CliRunner, Result

from orderlymq.cli import cli
from orderlymq_protocol.codes import RequestCode, ResponseCode
from orderlymq_protocol.frame.command import RemotingCommand
from orderlymq_protocol.message import properties
from orderlymq_protocol.message.ids import encode_offset_message_id
from orderlymq_protocol.message.sysflag import COMPRESSED
from orderlymq_runtime.remoting.connection import Connection
from tests.client.fakecluster import BROKER, FakeCluster, Fault, refuse, reset, running
from tests.protocol.records import encode_record


async def run(cluster: FakeCluster, *arguments: str) -> Result:
    return await asyncio.to_thread(
        CliRunner().invoke, cli, [*arguments, "--name-server", cluster.address]
    )


def nobody(command: RemotingCommand, _: Connection) -> RemotingCommand:
    """Answer that no group consumes a topic."""
    return command.reply(body=b'{"groupList":[]}')


NOTHING = refuse(ResponseCode.SYSTEM_ERROR, "can not find message by the offset, 7")
FOLLOWER = refuse(ResponseCode.SYSTEM_ERROR, "this replica does not lead group g")


@pytest.mark.parametrize(
    ("fault", "code"),
    [(NOTHING, 3), (FOLLOWER, 1), (refuse(ResponseCode.NO_PERMISSION), 1), (reset, 4)],
)
@pytest.mark.parametrize("is_own", [True, False])
async def test_only_what_is_not_there_is_not_found(fault: Fault, code: int, is_own: bool) -> None:
    """Law: code 3 means that the message does not exist; if a broker could not be asked, the code is another."""
    async with running(topics={"T": 1}) as cluster:
        cluster.faults[RequestCode.VIEW_MESSAGE_BY_ID] = [fault] * 3
        message_id = encode_offset_message_id("127.0.0.1", cluster.port if is_own else 1, 7)

        result = await run(cluster, "message", "show", message_id)

    assert result.exit_code == code, result.stderr
    assert ("there is no message" in result.stderr) is (code == 3)


async def test_a_key_that_no_message_carries_is_not_found() -> None:
    """Law: a key without messages ends with code 3, as text and JSON."""
    find = ("message", "find", "--topic", "T", "--key", "k")
    async with running(topics={"T": 1}) as cluster:
        cluster.faults[RequestCode.QUERY_MESSAGE] = [refuse(ResponseCode.QUERY_NOT_FOUND)] * 2

        text, as_json = await run(cluster, *find), await run(cluster, *find, "--json")

    assert (text.exit_code, text.stdout) == (3, "")
    assert as_json.exit_code == json.loads(as_json.stdout)["exitCode"] == 3


async def test_what_is_no_id_is_not_found() -> None:
    """Law: a text that is no message id ends with 3 and says where else to look."""
    async with running() as cluster:
        result = await run(cluster, "message", "show", "no-id")

    assert result.exit_code == 3
    assert "add --topic" in result.stderr


@pytest.mark.parametrize(
    ("fault", "code"), [(reset, 4), (refuse(ResponseCode.NO_PERMISSION, "no right"), 1)]
)
async def test_a_part_of_a_life_is_not_shown_as_the_whole(fault: Fault, code: int) -> None:
    """Law: if a topic could not be asked, `trace` names it instead of showing a part as the whole."""
    async with running(topics={"T": 1}) as cluster:
        cluster.faults[RequestCode.QUERY_TOPIC_CONSUME_BY_WHO] = [nobody] * 2
        cluster.faults[RequestCode.QUERY_MESSAGE] = [fault]
        text = await run(cluster, "trace", "ID", "--topic", "T")
        cluster.faults[RequestCode.QUERY_MESSAGE] = [fault]
        found = await run(cluster, "trace", "ID", "--topic", "T", "--json")

    assert [text.exit_code, found.exit_code] == [code, code]
    assert "of topic T" in text.stderr
    assert "of topic T" in json.loads(found.stdout)["error"]


async def test_a_life_names_the_group_that_could_not_be_asked() -> None:
    """Law: `trace` shows what it found and names the broker group that could not be asked."""
    declared = {"T": f"{BROKER}:1;broker-b:1"}
    async with running(topics={"T": 1}, declared=declared) as cluster:
        cluster.append("T", 0, b"x", b"UNIQ_KEY\x01ID\x02")
        stored = cluster.logs["T", 0][0]
        cluster.faults[RequestCode.QUERY_MESSAGE] = [
            lambda command, _: command.reply(body=encode_record(stored))
        ]
        cluster.faults[RequestCode.QUERY_TOPIC_CONSUME_BY_WHO] = [nobody]

        result = await run(cluster, "trace", "ID", "--topic", "T")

    assert "stored" in result.stdout
    assert result.exit_code == 4
    assert "broker-b" in result.stderr


async def test_a_message_that_cannot_be_read_is_shown_as_it_is_stored_and_not_sent_again() -> None:
    """Law: a message that cannot be decompressed is shown as hex with the reason, and cannot be sent again."""
    async with running(topics={"T": 1}) as cluster:
        named = properties.encode_properties({"KEYS": "k"})
        message_id = cluster.append("T", 0, b"no zlib", named, sys_flag=COMPRESSED)
        cluster.append("T", 0, b"plain", named)
        records = b"".join(encode_record(each) for each in cluster.physical.values())
        cluster.faults[RequestCode.QUERY_MESSAGE] = [lambda command, _: command.reply(body=records)]

        found = await run(
            cluster, "message", "find", "--topic", "T", "--key", "k", "--output", "json"
        )
        shown = await run(cluster, "message", "show", message_id, "--output", "json")
        text = await run(cluster, "message", "show", message_id)
        sent = await run(cluster, "message", "resend", message_id, "--topic", "T")

    assert [each["body"] for each in json.loads(found.stdout)] == [b"no zlib".hex(), "plain"]
    told = json.loads(shown.stdout)
    assert (told["body"], bool(told["unreadable"])) == (b"no zlib".hex(), True)
    assert b"no zlib".hex() in text.stdout
    assert (sent.exit_code, "cannot be read" in sent.stderr) == (1, True)


async def test_a_message_that_is_no_dead_letter_is_not_sent_again_without_a_topic() -> None:
    """Law: resending a message that is no dead letter needs --topic; else code 2 with one sentence."""
    async with running(topics={"T": 1}) as cluster:
        message_id = cluster.append("T", 0, b"plain")

        sent = await run(cluster, "message", "resend", message_id)

    assert sent.exit_code == 2
    assert (
        f"message {message_id} of T names no original topic, so it is not a dead letter"
        in sent.stderr
    )
    assert "add --topic TOPIC" in sent.stderr


@pytest.mark.parametrize("words", [("topic", "show", "T"), ("topic", "list"), ("send", "T", "x")])
async def test_the_address_of_a_broker_is_no_name_server(words: tuple[str, ...]) -> None:
    """Law: if the address is a broker's, the error says that it is no name server."""
    unknown = refuse(ResponseCode.REQUEST_CODE_NOT_SUPPORTED)
    async with running(topics={"T": 1}) as cluster:
        for code in (RequestCode.GET_ROUTEINFO_BY_TOPIC, RequestCode.GET_BROKER_CLUSTER_INFO):
            cluster.faults[code] = [unknown] * 9

        result = await run(cluster, *words)

    assert result.exit_code == 4
    assert f"{cluster.address} is not a name server" in result.stderr
