"""Requests about messages and queues that change nothing."""

import pytest
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from orderlymq_broker.processors.fetch.query import BODY_SIZE_MAX, LOADED_COUNT
from orderlymq_broker.settings import StorageSettings
from orderlymq_broker.state.records import QueueFloor, RetentionAdvanced, TopicSet
from orderlymq_broker.store.kv import Batch, Family
from orderlymq_protocol.message.batch import BatchEntry, encode_batch
from tests.broker.processors.driver import START_MS, Shell, settings
from tests.broker.processors.readcounter import ReadCounter
from tests.broker.processors.requests import bodies, create, properties, send, send_ext
from tests.broker.store.memory import MemoryStore

EVER = {"beginTimestamp": "0", "endTimestamp": str(2**62)}


def find(shell: Shell, key: str, maximum: int = 64, **more: str) -> list[bytes]:
    ext = {"topic": "orders", "key": key, "maxNum": str(maximum), **EVER, **more}
    reply = shell.call(12, ext)
    assert set(reply.ext) == {"indexLastUpdateTimestamp", "indexLastUpdatePhyoffset"}
    if reply.code:
        assert (reply.code, reply.body) == (22, b"")
        assert reply.remark == "can not find message, maybe time range not correct"
    return bodies(reply)


def test_every_token_of_keys_finds_its_newest_messages_oldest_first(shell: Shell) -> None:
    """Law: each word of KEYS finds its newest messages, listed oldest first, as RocketMQ does."""
    create(shell, TopicSet("orders", 2, 2))
    for number in range(3):
        send(
            shell,
            body=str(number).encode(),
            props=properties(KEYS=f"all only{number}"),
            e=number % 2,
        )

    assert find(shell, "all") == [b"0", b"1", b"2"]
    assert find(shell, "only1") == [b"1"]
    assert find(shell, "onl") == []
    assert find(shell, "all", maximum=2) == [b"1", b"2"]


def test_a_message_trace_is_found_by_each_of_its_ids(shell: Shell) -> None:
    """Law: a trace message is found by each of the ids in it, hundreds per message, as far as the entry has room."""
    create(shell, TopicSet("orders", 1, 1))
    ids = [f"7F0000010BD518B4AAC2{number:012X}" for number in range(900)]
    send(shell, body=b"trace", props=properties(KEYS=" ".join(ids)))
    assert [find(shell, each) for each in (ids[0], ids[500], ids[-1])] == [[b"trace"]] * 3

    for number in range(20):
        keys = " ".join(f"{number}-{key}" for key in range(2_000))
        shell.submit(310, send_ext("orders", properties(KEYS=keys)), b"%d" % number)
    shell.settle()

    found = [[bool(find(shell, f"{n}-{key}")) for key in (63, 1_023, 1_024)] for n in range(20)]
    assert found == [[True, n < 8, False] for n in range(20)]


def test_a_query_by_key_is_capped_at_64(shell: Shell) -> None:
    """Law: a query by key returns at most 64 messages, one by unique key at most 32."""
    create(shell, TopicSet("orders", 1, 1))
    for _ in range(70):
        shell.submit(310, send_ext("orders", properties(KEYS="k", UNIQ_KEY="U")), b"x")
    shell.settle()

    assert len(find(shell, "k", maximum=1_000)) == 64
    assert len(find(shell, "U", _UNIQUE_KEY_QUERY="true")) == 32
    assert find(shell, "U") == []


class IndexReads(MemoryStore):
    """A store that counts the index entries that are read."""

    entries = 0

    def base_scan(
        self, family: Family, start: bytes, end: bytes, limit: int, *, reverse: bool
    ) -> list[tuple[bytes, bytes]]:
        pairs = super().base_scan(family, start, end, limit, reverse=reverse)
        self.entries += len(pairs) if family is Family.KEY_INDEX else 0
        return pairs


def test_a_query_reads_no_entry_of_a_dropped_message() -> None:
    """Law: a query reads no index entries of dropped messages, swept or not."""
    store = IndexReads()
    shell = Shell(store=store).lead()
    create(shell, TopicSet("orders", 1, 1))
    for number in range(20):
        send(shell, body=b"%d" % number, props=properties(KEYS="k"))
    floor = shell.state.physical_end
    send(shell, body=b"kept", props=properties(KEYS="k"))
    create(shell, RetentionAdvanced((QueueFloor(1, 0, 20),), floor))
    store.write(Batch(), sync=True)
    store.entries = 0

    assert find(shell, "k") == [b"kept"]
    assert store.entries == 1


def test_only_messages_of_the_asked_time_are_found(shell: Shell) -> None:
    """Law: a query returns messages of the asked time by store time, both ends included."""
    create(shell, TopicSet("orders", 1, 1))
    for number in range(3):
        send(shell, body=str(number).encode(), props=properties(KEYS="k"))
        shell.wall_ms += 1_000

    second = str(START_MS + 1_000)
    assert find(shell, "k", beginTimestamp=second, endTimestamp=second) == [b"1"]


def test_a_message_of_the_asked_time_is_found_behind_thousands_of_newer_ones(shell: Shell) -> None:
    """Law: thousands of newer messages with the same key do not hide one of the asked time."""
    create(shell, TopicSet("orders", 1, 1))
    send(shell, body=b"old", props=properties(KEYS="hot"))
    asked = str(shell.state.last_timestamp)
    shell.pass_time(120_000, step=60_000)
    for _ in range(5):
        entries = [BatchEntry(0, b"new", properties(KEYS="hot").encode())] * 1_000
        shell.call(320, send_ext("orders", m="true"), encode_batch(entries))

    assert find(shell, "hot", beginTimestamp=asked, endTimestamp=asked) == [b"old"]
    assert find(shell, "hot", maximum=1) == [b"new"]


def test_a_message_is_viewed_by_its_physical_offset_on_any_replica(shell: Shell) -> None:
    """Law: any replica shows a message by its physical offset; a wrong offset answers 1,
    and uncommitted messages are not found.
    """
    create(shell, TopicSet("orders", 1, 1))
    send(shell, body=b"first")
    offset = shell.state.physical_end
    shell.submit(310, send_ext("orders"), b"second")

    opaque = shell.submit(33, {"offset": str(offset)})
    reply = shell.reply_to(opaque)
    assert reply is not None
    assert (reply.code, reply.remark) == (1, f"can not find message by the offset, {offset}")
    shell.settle()
    shell.follow()
    assert bodies(shell.call(33, {"offset": str(offset)})) == [b"second"]
    assert shell.call(33, {"offset": "1"}).code == 1
    assert shell.call(33, {"offset": "-1"}).code == 1


def test_the_ends_of_a_queue(shell: Shell) -> None:
    """Law: the maximum is the next offset; an unknown queue is empty; the earliest store time is -1 if there is none."""
    create(shell, TopicSet("orders", 2, 2))
    queue = {"topic": "orders", "queueId": "0"}

    def ends() -> tuple[str, str, str]:
        return (
            shell.call(30, queue).ext["offset"],
            shell.call(31, queue).ext["offset"],
            shell.call(32, queue).ext["timestamp"],
        )

    assert ends() == ("0", "0", "-1")
    for _ in range(3):
        send(shell)
        shell.wall_ms += 10
    assert ends() == ("3", "0", str(START_MS))
    create(shell, RetentionAdvanced((QueueFloor(shell.state.topics.by_name["orders"].id, 0, 2),)))
    assert ends() == ("3", "2", str(START_MS + 20))
    assert shell.call(30, {"topic": "unknown", "queueId": "0"}).ext == {"offset": "0"}


@pytest.mark.parametrize("tail", [0, 64 << 20])
def test_a_search_by_time_takes_the_nearer_neighbour(tail: int) -> None:
    """Law: a search by time returns the nearer neighbour (4.9), or the lower or upper boundary that 5.x asks for."""
    shell = Shell(settings(storage=StorageSettings(tail_cache_size=tail))).lead()
    create(shell, TopicSet("orders", 1, 1))
    for at in (0, 100, 100, 200):
        shell.wall_ms = START_MS + at
        send(shell)

    def search(at: int, **more: str) -> str:
        ext = {"topic": "orders", "queueId": "0", "timestamp": str(START_MS + at), **more}
        return shell.call(29, ext).ext["offset"]

    assert [search(at) for at in (-5, 0, 40, 50, 60, 100, 149, 150, 151, 200, 999)] == list(
        "00001122333"
    )
    lower = [search(at, boundaryType="LOWER") for at in (-5, 0, 1, 100, 101, 201)]
    upper = [search(at, boundaryType="UPPER") for at in (-5, 0, 99, 100, 199, 201)]
    assert (lower, upper) == (list("001134"), list("000223"))
    assert shell.call(29, {"topic": "none", "queueId": "0", "timestamp": "1"}).ext == {
        "offset": "0"
    }


@hypothesis_settings(max_examples=60, deadline=None)
@given(st.lists(st.integers(0, 20), max_size=12), st.integers(-2, 22))
def test_a_search_by_time_agrees_with_looking_at_every_message(
    steps: list[int], wanted: int
) -> None:
    """Law: the bisection by time agrees with a walk over the queue."""
    shell = Shell().lead()
    create(shell, TopicSet("orders", 1, 1))
    for at in steps:
        shell.wall_ms = START_MS + at  # Times may step back; store times then stand still.
        send(shell)
    queue = shell.state.topics.by_name["orders"].queue(0)
    times = [entry.store_timestamp - START_MS for entry in queue.tail]

    lower = shell.core.queries.search(queue, START_MS + wanted, "LOWER")
    upper = shell.core.queries.search(queue, START_MS + wanted, "UPPER")

    assert lower == sum(1 for at in times if at < wanted)
    assert upper == max(0, sum(1 for at in times if at <= wanted) - 1)


@pytest.mark.parametrize(
    ("code", "ext"),
    [
        (12, {"topic": "orders"}),
        (33, {}),
        (33, {"offset": "x"}),
        (29, {"topic": "orders", "queueId": "0"}),
        (30, {"topic": "orders"}),
        (31, {"queueId": "0"}),
        (32, {}),
        (14, {}),
        (38, {}),
    ],
)
def test_a_question_without_its_fields_is_refused(
    shell: Shell, code: int, ext: dict[str, str]
) -> None:
    """Law: a request without a required field is refused with 1 and the field's name."""
    reply = shell.call(code, ext)

    assert reply.code == 1
    assert "<" in (reply.remark or "")


def test_no_more_is_read_than_an_answer_holds_and_a_few_messages(shell: Shell) -> None:
    """Law: a query reads little more than its answer can hold; 64 messages of 4 MiB once made it read 256 MiB."""
    create(shell, TopicSet("orders", 2, 2))
    size = 1 << 20
    for _ in range(24):
        send(shell, body=bytes(size), props=properties(KEYS="all"), e=0)
    reader = shell.core.context.reader = ReadCounter(shell.store)

    assert len(find(shell, "all")) == BODY_SIZE_MAX // size - 1
    assert reader.size <= BODY_SIZE_MAX + (LOADED_COUNT + 1) * (size + 1_000)
