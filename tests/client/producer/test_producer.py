"""The producer against a cluster on loopback: retries, outcomes, order."""

import asyncio
import time
from collections import Counter

import pytest

from orderlymq.errors import (
    NameServersUnreachable,
    SendRefused,
    SendUnknown,
    SettingError,
    StateError,
    TopicNotFound,
)
from orderlymq.message import Message, SendStatus
from orderlymq.producer.producer import Producer
from orderlymq.producer.selectors import by_modulo, hash_index
from orderlymq.settings import ClientSettings, ProducerSettings
from orderlymq_protocol.body.messagequeue import MessageQueue
from orderlymq_protocol.codes import RequestCode
from orderlymq_protocol.frame.command import RemotingCommand
from orderlymq_protocol.header.catalogue import SendMessageHeader
from orderlymq_protocol.message import properties, sysflag
from orderlymq_protocol.message.ids import decode_offset_message_id
from orderlymq_protocol.message.record import body_crc
from tests.client import fakecluster
from tests.client.fakecluster import BROKER, FakeCluster, running
from tests.waiting import until

SEND = int(RequestCode.SEND_MESSAGE_V2)


def _sends(cluster: FakeCluster) -> list[SendMessageHeader]:
    return [
        SendMessageHeader.from_request(each.code, each.ext)
        for each in cluster.seen
        if each.code == SEND
    ]


async def test_a_message_comes_back_with_where_it_is() -> None:
    """Law: a result has status, both ids, queue and offset; tag, keys and body are stored unchanged (PRO-03, PRO-07)."""
    async with running(topics={"T": 2}) as cluster, Producer("G", cluster.address) as producer:
        result = await producer.send("T", bytes(range(256)), tags="A", keys=("k1", "k2"), queue=1)

        (stored,) = cluster.logs["T", 1]
        found = properties.decode_properties(stored.properties)
        assert result.status is SendStatus.OK
        assert result.queue == MessageQueue("T", BROKER, 1)
        assert result.queue_offset == 0
        assert decode_offset_message_id(result.offset_message_id) == (
            "127.0.0.1",
            cluster.port,
            stored.physical_offset,
        )
        assert (found["TAGS"], found["KEYS"], found["UNIQ_KEY"]) == (
            "A",
            "k1 k2",
            result.message_id,
        )
        assert stored.body == bytes(range(256))


async def test_plain_sends_are_spread_and_keyed_sends_stay_in_one_queue() -> None:
    """Law: plain sends are spread over the queues, and keyed sends stay in one (PRO-14, SEL-04, SEL-03)."""
    async with running(topics={"T": 4}) as cluster, Producer("G", cluster.address) as producer:
        plain = Counter([(await producer.send("T", "x")).queue.queue_id for _ in range(40)])
        keyed = {(await producer.send("T", "x", key="TagA")).queue.queue_id for _ in range(10)}
        chosen = await producer.send("T", "x", selector=by_modulo, argument=6)

    assert plain == {0: 10, 1: 10, 2: 10, 3: 10}
    assert keyed == {3}
    assert chosen.queue.queue_id == 2


async def test_a_keyed_send_is_repeated_to_the_same_queue_under_the_same_key() -> None:
    """Law: a keyed send is repeated to the same queue with the same unique key and stored once (SND-06)."""
    async with (
        running(topics={"T": 4}, ordered=True) as cluster,
        Producer("G", cluster.address) as producer,
    ):
        await producer.queues("T")
        cluster.faults[SEND] = [
            fakecluster.reset,
            fakecluster.refuse(14, "no leader"),
            fakecluster.serve_then_reset(cluster),
            fakecluster.refuse(2, "[OVERLOAD]system busy"),
        ]

        result = await producer.send("T", "once", key="k")

    headers = _sends(cluster)
    assert len(headers) == 5
    assert len({header.queue_id for header in headers}) == 1
    assert len({header.properties for header in headers}) == 1
    assert len({header.born_timestamp for header in headers}) == 1
    assert cluster.bodies("T", result.queue.queue_id) == [b"once"]
    assert result.queue_offset == 0


async def test_a_lost_answer_that_is_never_repaired_is_unknown_and_in_time() -> None:
    """Law: a send without any answer ends as unknown at its time-out, not later (PRO-09, SND-11)."""
    async with running(topics={"T": 1}) as cluster, Producer("G", cluster.address) as producer:
        await producer.queues("T")
        cluster.faults[SEND] = [fakecluster.silence] * 9
        began = time.monotonic()

        with pytest.raises(SendUnknown, match="stored: unknown"):
            await producer.send("T", "x", key="k", timeout=0.2)

    assert 0.19 <= time.monotonic() - began < 2.5, "the 3 s of another try were waited for"


async def test_a_refusal_after_a_lost_answer_stays_unknown() -> None:
    """Law: a refusal after a lost answer leaves the send unknown, because the first try may be stored."""
    async with running(topics={"T": 1}) as cluster, Producer("G", cluster.address) as producer:
        await producer.queues("T")
        cluster.faults[SEND] = [fakecluster.serve_then_reset(cluster), fakecluster.refuse(16)]

        with pytest.raises(SendUnknown) as caught:
            await producer.send("T", "x", key="k")

    assert caught.value.code == 16


async def test_a_refused_send_names_code_address_and_that_nothing_is_stored() -> None:
    """Law: a refused send's error has code and address and says that nothing is stored (SND-11)."""
    async with running(topics={"T": 1}) as cluster, Producer("G", cluster.address) as producer:
        await producer.queues("T")
        cluster.faults[SEND] = [fakecluster.refuse(13, "too large")]

        with pytest.raises(SendRefused, match="too large") as caught:
            await producer.send("T", "x", key="k")

    assert (caught.value.code, caught.value.address, caught.value.stored) == (
        13,
        cluster.address,
        "no",
    )
    assert cluster.bodies("T", 0) == []


async def test_a_plain_send_makes_three_tries_and_no_more() -> None:
    """Law: a plain send is tried three times by default (SND-06)."""
    async with running(topics={"T": 2}) as cluster, Producer("G", cluster.address) as producer:
        await producer.queues("T")
        cluster.faults[SEND] = [fakecluster.refuse(1)] * 5

        with pytest.raises(SendRefused):
            await producer.send("T", "x")

    assert len(_sends(cluster)) == 3


async def test_another_status_than_ok_is_returned_and_not_sent_again() -> None:
    """Law: another status than OK, such as FLUSH_DISK_TIMEOUT, is returned and not sent again (SND-07)."""
    async with running(topics={"T": 1}) as cluster, Producer("G", cluster.address) as producer:
        await producer.queues("T")

        def slow_disk(command: RemotingCommand, conn: object) -> RemotingCommand:
            answer = cluster.serve(command, conn)  # type: ignore[arg-type]  # not looked at
            assert answer is not None
            answer.code = 10
            return answer

        cluster.faults[SEND] = [slow_disk]
        result = await producer.send("T", "x")

    assert result.status is SendStatus.FLUSH_DISK_TIMEOUT
    assert len(_sends(cluster)) == 1


async def test_another_broker_is_refused_where_order_matters() -> None:
    """Law: sending to another broker is refused for a keyed send, because it breaks the order (SND-07)."""
    settings = ProducerSettings(retry_another_broker_when_not_store_ok=True)
    async with (
        running(topics={"T": 1}) as cluster,
        Producer("G", cluster.address, settings=settings) as producer,
    ):
        with pytest.raises(SettingError, match="breaks the order"):
            await producer.send("T", "x", key="k")


async def test_large_bodies_are_deflated_and_small_ones_are_not() -> None:
    """Law: bodies from 4096 bytes on are compressed, with RocketMQ's flags 0x301 (PRO-10)."""
    async with running(topics={"T": 1}) as cluster, Producer("G", cluster.address) as producer:
        await producer.send("T", b"x" * 4095)
        await producer.send("T", b"x" * 4096)

    small, large = cluster.logs["T", 0]
    assert (len(small.body), small.sys_flag) == (4095, 0)
    assert len(large.body) < 100
    assert large.sys_flag == 0x301 == sysflag.with_compression(0, 3)
    checksums = [
        properties.find_property(each.properties, "OMQ_BODY_CRC") for each in (small, large)
    ]
    assert checksums == [None, f"{body_crc(b'x' * 4096):08x},{body_crc(large.body):08x}"]


async def test_what_compression_adds_to_the_properties_counts_before_the_send() -> None:
    """Law: properties that compression adds count for the limit before the send, also in a batch (PRO-11)."""
    large, small = (
        Message(topic="T", body=b"x" * size, properties={"a": "b" * 32_731})
        for size in (4096, 4095)
    )
    async with running(topics={"T": 1}) as cluster, Producer("G", cluster.address) as producer:
        await producer.send(small)
        with pytest.raises(
            SettingError, match="the properties take 32775 bytes, the limit is 32767"
        ):
            await producer.send(large)
        with pytest.raises(SettingError, match="limit is 32767"):
            await producer.send_batch([large])

    assert len(cluster.logs["T", 0]) == 1


async def test_a_missing_topic_is_an_error_and_a_creatable_one_is_made_with_four_queues() -> None:
    """Law: a missing topic is an error; one that may be created gets four queues (PRO-08)."""
    async with running() as cluster, Producer("G", cluster.address) as producer:
        with pytest.raises(TopicNotFound, match="orderlymq topic create new"):
            await producer.send("new", "x")
        cluster.topics["TBW102"] = 8
        await producer.send("new", "x")

    assert cluster.topics["new"] == 4


async def test_one_way_sends_ask_for_no_answer_and_never_raise_for_trouble() -> None:
    """Law: one-way sends ask for no answer and raise nothing for errors of the cluster (SND-05)."""
    async with running(topics={"T": 1}) as cluster, Producer("G", cluster.address) as producer:
        await producer.send_oneway("T", "x", key="k")
        await until(lambda: cluster.bodies("T", 0) == [b"x"])
        (sent,) = (each for each in cluster.seen if each.code == SEND)

    assert sent.is_oneway


async def test_asynchronous_sends_of_one_key_are_stored_in_the_order_of_the_calls() -> None:
    """Law: asynchronous sends of one key are stored in the order of the calls, also with reset connections (SND-04)."""
    async with (
        running(topics={"T": 4}, ordered=True) as cluster,
        Producer("G", cluster.address) as producer,
    ):
        await producer.queues("T")
        cluster.faults[SEND] = [
            cluster.serve,
            fakecluster.reset,
            fakecluster.serve_then_reset(cluster),
            fakecluster.refuse(14),
        ]
        futures = [
            producer.send_nowait("T", f"{key}{n}", key=key) for n in range(20) for key in "ab"
        ]

        results = await asyncio.gather(*futures)

    for key in "ab":
        bodies = [body for queue in range(4) for body in cluster.bodies("T", queue)]
        assert [body for body in bodies if body.startswith(key.encode())] == [
            f"{key}{n}".encode() for n in range(20)
        ]
    assert len(results) == 40


async def test_sends_behind_a_failed_one_are_refused_unsent() -> None:
    """Law: sends behind a failed one of their key are refused unsent."""
    async with running(topics={"T": 1}) as cluster, Producer("G", cluster.address) as producer:
        await producer.queues("T")
        cluster.faults[SEND] = [cluster.serve, fakecluster.refuse(13)]
        futures = [producer.send_nowait("T", f"m{n}", key="k") for n in range(4)]

        outcomes = await asyncio.gather(*futures, return_exceptions=True)
        again = await producer.send("T", "m9", key="k")

    assert [type(each).__name__ for each in outcomes] == [
        "SendResult",
        "SendRefused",
        "SendRefused",
        "SendRefused",
    ]
    assert "an earlier send of the same key failed" in str(outcomes[2])
    assert cluster.bodies("T", 0) == [b"m0", b"m9"]
    assert again.queue_offset == 1


async def test_a_send_waits_behind_the_asynchronous_ones_of_its_key() -> None:
    """Law: an awaited send stays behind earlier asynchronous ones of its key."""
    async with running(topics={"T": 1}) as cluster, Producer("G", cluster.address) as producer:
        first = [producer.send_nowait("T", f"m{n}", key="k") for n in range(5)]
        last = await producer.send("T", "last", key="k")
        await asyncio.gather(*first)

    assert last.queue_offset == 5


async def test_closing_waits_for_every_pending_send() -> None:
    """Law: closing waits for every pending send (SND-12)."""
    async with running(topics={"T": 2}) as cluster:
        producer = Producer("G", cluster.address)
        await producer.start()
        futures = [producer.send_nowait("T", f"m{n}", key=n % 3) for n in range(30)]
        futures += [producer.send_nowait("T", f"p{n}") for n in range(30)]

        await producer.close()

    assert all(future.done() and future.exception() is None for future in futures)
    assert len(cluster.bodies("T", 0)) + len(cluster.bodies("T", 1)) == 60


async def test_a_batch_is_one_append_with_consecutive_offsets() -> None:
    """Law: a batch is stored together with consecutive offsets, in the queue of its key (BAT-01, BAT-05)."""
    async with running(topics={"T": 4}) as cluster, Producer("G", cluster.address) as producer:
        await producer.send("T", "before", key="TagA")
        batch = [Message(topic="T", body=f"m{n}".encode(), keys="ORDER-1") for n in range(50)]

        result = await producer.send_batch(batch, key="TagA")

    assert result.queue.queue_id == 3
    assert result.queue_offset == 1
    assert len(result.offset_message_id.split(",")) == 50
    assert cluster.bodies("T", 3)[1:] == [message.body for message in batch]
    assert int(RequestCode.SEND_BATCH_MESSAGE) in cluster.codes()


async def test_a_batch_is_measured_with_all_that_it_gets() -> None:
    """Law: a batch counts with its key and other additions; one that is too large is refused by name before it is sent."""
    body = b"x" * (4 * 1024 * 1024 - 80)
    async with running(topics={"T": 4}) as cluster, Producer("G", cluster.address) as producer:
        with pytest.raises(SettingError, match="cut it with split_batch"):
            await producer.send_batch([Message(topic="T", body=body)], key="k" * 100)

    assert not cluster.logs


async def test_no_argument_of_a_send_is_dropped() -> None:
    """Law: an argument that a send would ignore is refused by name, and nothing is sent."""
    message = Message(topic="T", body=b"x")
    async with running(topics={"T": 4}) as cluster, Producer("G", cluster.address) as producer:
        sends = (
            lambda: producer.send(message, delay_level=3),
            lambda: producer.send_nowait(message, tags="A"),
            lambda: producer.send_oneway(message, properties={"a": "b"}),
            lambda: producer.request(message, b"y"),
            lambda: producer.send("T", b"x", queue=1, selector=by_modulo, argument=2),
            lambda: producer.send("T", b"x", key="k", argument=2),
            lambda: producer.send("T", b"x", key="k", queue=1),
            lambda: producer.send(message, key="k", queue=1),
            lambda: producer.send_nowait("T", b"x", key="k", queue=1),
            lambda: producer.send_oneway("T", b"x", key="k", queue=1),
            lambda: producer.send_batch([message], key="k", queue=1),
            lambda: producer.send_oneway("T", b"x", argument=2),
            lambda: producer.send_batch([message], argument=2),
            lambda: producer.send_batch([Message(topic="T", body=b"x", key=n) for n in "ab"]),
        )
        for send in sends:
            with pytest.raises(SettingError):
                await send()

    assert not cluster.logs


async def test_a_key_anywhere_in_a_batch_chooses_its_queue() -> None:
    """Law: a key of any message in a batch chooses the queue."""
    async with running(topics={"T": 4}) as cluster, Producer("G", cluster.address) as producer:
        for _ in range(4):
            batch = [Message(topic="T", body=b"x", key=key) for key in (None, "TagA")]
            assert (await producer.send_batch(batch)).queue.queue_id == 3


@pytest.mark.parametrize("linger", [0.0, 0.005])
async def test_a_number_and_its_text_are_one_key_however_it_is_sent(linger: float) -> None:
    """Law: a number and its text are the same key in all ways to send (SEL-04)."""
    async with (
        running(topics={"T": 8}, ordered=True) as cluster,
        Producer("G", cluster.address, linger=linger) as producer,
    ):
        await producer.send("T", "1", key=17)
        futures = [producer.send_nowait("T", "2", key=17), producer.send_nowait("T", "3", key="17")]
        await producer.send("T", "4", key=17)
        await producer.send_batch([Message(topic="T", body=b"5", key=key) for key in (17, "17")])
        await producer.send_oneway("T", "6", key=17)
        queue = (await asyncio.gather(*futures))[0].queue.queue_id
        await until(lambda: len(cluster.bodies("T", queue)) == 7)

    assert queue == hash_index("17", 8) != hash_index(17, 8)
    assert cluster.bodies("T", queue) == [b"1", b"2", b"3", b"4", b"5", b"5", b"6"]


async def test_messages_of_a_batch_keep_their_own_identities() -> None:
    """Law: each message of a batch keeps its own unique key (BAT-02)."""
    async with running(topics={"T": 1}) as cluster, Producer("G", cluster.address) as producer:
        batch = [Message(topic="T", body=b"x") for _ in range(3)]

        await producer.send_batch(batch)

    stored = [properties.decode_properties(message.properties) for message in cluster.logs["T", 0]]
    assert [each["UNIQ_KEY"] for each in stored] == [message.unique_key for message in batch]


async def test_a_dead_name_server_is_passed_over() -> None:
    """Law: a dead name server is skipped (PRO-01, NSR-03)."""
    async with (
        running(topics={"T": 1}) as cluster,
        Producer("G", f"127.0.0.1:1;{cluster.address}") as producer,
    ):
        await producer.send("T", "x")

    assert cluster.bodies("T", 0) == [b"x"]


async def test_without_any_name_server_the_error_says_what_to_do() -> None:
    """Law: without a name server the error says what to do (CLI-08)."""
    async with Producer("G", "127.0.0.1:1") as producer:
        with pytest.raises(NameServersUnreachable, match="orderlymq up"):
            await producer.send("T", "x")
    with pytest.raises(SettingError, match="ORDERLYMQ_NAME_SERVER"):
        Producer("G", "")


async def test_states_are_named() -> None:
    """Law: a second start, and a send before the start or after the close, raise with the state's name (PRO-01)."""
    async with running(topics={"T": 1}) as cluster:
        producer = Producer("G", cluster.address)
        with pytest.raises(StateError, match="not started"):
            await producer.send("T", "x")
        await producer.start()
        with pytest.raises(StateError, match="RUNNING"):
            await producer.start()
        await producer.close()
        with pytest.raises(StateError, match="SHUTDOWN_ALREADY"):
            await producer.send("T", "x")
        with pytest.raises(StateError, match="SHUTDOWN_ALREADY"):
            producer.send_nowait("T", "x")
        await producer.close()


async def test_a_selector_that_fails_sends_nothing() -> None:
    """Law: a selector that raises sends nothing (SEL-09)."""

    def broken(*_: object) -> MessageQueue:
        raise KeyError("no such shop")

    async with running(topics={"T": 1}) as cluster, Producer("G", cluster.address) as producer:
        with pytest.raises(SettingError, match="the selector raised KeyError"):
            await producer.send("T", "x", selector=broken)
        with pytest.raises(SettingError, match="not between 0 and 0"):
            await producer.send("T", "x", queue=1)

    assert SEND not in cluster.codes()


async def test_brokers_learn_about_the_producer_and_that_it_left() -> None:
    """Law: brokers get heartbeats with group and client id, and an unregistration at the end (PRO-02, CLI-05)."""
    async with running(topics={"T": 1}) as cluster:
        async with Producer("G", cluster.address) as producer:
            await producer.send("T", "x")
            await until(lambda: bool(cluster.heartbeats))
            client_id = producer.client_id
        (left,) = (each for each in cluster.seen if each.code == RequestCode.UNREGISTER_CLIENT)

    assert cluster.heartbeats[0].client_id == client_id
    assert [each.group_name for each in cluster.heartbeats[0].producer_data_set] == ["G"]
    assert left.ext == {"clientID": client_id, "producerGroup": "G"}


async def test_unique_keys_differ_and_a_message_keeps_its_own() -> None:
    """Law: each message object has its own unique key and keeps it (PRO-05)."""
    async with running(topics={"T": 1}) as cluster, Producer("G", cluster.address) as producer:
        message = Message(topic="T", body=b"x")
        first = await producer.send(message)
        second = await producer.send(message)
        others = {(await producer.send("T", "x")).message_id for _ in range(200)}

    assert first.message_id == second.message_id
    assert len(others) == 200


async def test_credentials_sign_every_request_to_a_broker() -> None:
    """Law: with credentials, every request to a broker has AccessKey and Signature."""
    client = ClientSettings(access_key="RocketMQ", secret_key="12345678")
    async with (
        running(topics={"T": 1}) as cluster,
        Producer("G", cluster.address, client_settings=client) as producer,
    ):
        await producer.send("T", "x")

    (sent,) = (each for each in cluster.seen if each.code == SEND)
    assert sent.ext["AccessKey"] == "RocketMQ"
    assert "Signature" in sent.ext


@pytest.mark.parametrize("retries", [0, 1, 2])
async def test_an_asynchronous_send_is_tried_as_often_as_its_setting_says(retries: int) -> None:
    """Law: an asynchronous send is tried once and as often again as its setting says (SND-03)."""
    settings = ProducerSettings(retry_times_when_send_async_failed=retries)
    async with (
        running(topics={"T": 2}) as cluster,
        Producer("G", cluster.address, settings=settings) as producer,
    ):
        await producer.queues("T")
        cluster.faults[SEND] = [fakecluster.reset] * 9

        with pytest.raises(SendUnknown):
            await producer.send_nowait("T", "x")

    assert len(_sends(cluster)) == retries + 1


async def test_a_body_is_bytes_and_comes_back_as_it_was() -> None:
    """Law: a body's bytes are stored unchanged; an empty one is refused, as in Java (PRO-04)."""
    bodies = [bytes(range(256)), b"\xff\xfe\x00", b"a\x01b\x02", b"\n", b"{"]
    async with running(topics={"T": 1}) as cluster, Producer("G", cluster.address) as producer:
        for body in bodies:
            await producer.send("T", body)
        with pytest.raises(SettingError, match="body is empty"):
            await producer.send("T", b"")

    assert cluster.bodies("T", 0) == bodies


async def test_routes_are_read_again_after_the_period() -> None:
    """Law: routes are refreshed after pollNameServerInterval without a failure (CLI-06, NSR-07)."""
    settings = ClientSettings(poll_name_server_interval=0.05)
    async with (
        running(topics={"T": 1}) as cluster,
        Producer("G", cluster.address, client_settings=settings) as producer,
    ):
        assert len(await producer.queues("T")) == 1
        asked = cluster.codes().count(RequestCode.GET_ROUTEINFO_BY_TOPIC)
        cluster.topics["T"] = 2
        began = time.monotonic()
        while len(await producer.queues("T")) == 1:  # noqa: ASYNC110 - what is waited for is the period
            await asyncio.sleep(0.005)
        elapsed_s = time.monotonic() - began

    assert asked == 1
    assert elapsed_s < 15, "the interval of 30 s was waited for"
