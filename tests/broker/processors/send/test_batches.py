"""Batches: several messages in one send, stored together or not at all."""

import tracemalloc
from itertools import pairwise

import pytest

from orderlymq_broker.core.effects import Send
from orderlymq_broker.core.entrybuilder import PROPOSAL_SIZE_MAX
from orderlymq_broker.core.uncommitted import Place
from orderlymq_broker.processors.send.batches import (
    PIECE_COUNT,
    READ_COUNT_MAX,
    READ_COUNT_SIZE,
    _Batch,
)
from orderlymq_broker.processors.send.responses import answer_places
from orderlymq_broker.settings import Address, RaftSettings
from orderlymq_protocol.body.config import QUEUES_MAX
from orderlymq_protocol.codes import RequestCode, ResponseCode
from orderlymq_protocol.frame.codec import ANSWER_HEADER_SIZE_MAX, FrameDecoder, encode
from orderlymq_protocol.frame.command import RemotingCommand, request
from orderlymq_protocol.integers import INT64_MAX
from orderlymq_protocol.message.batch import BATCH_COUNT_MAX, BatchEntry, encode_batch
from orderlymq_protocol.message.properties import decode_properties
from tests.broker.processors.driver import ALICE, BOB, Shell, settings
from tests.broker.processors.requests import (
    STORED_WITH,
    create,
    messages,
    pull,
    send,
    send_ext,
)
from tests.broker.processors.send.test_sends import ORDERED, PLAIN, stored


def batch_body(*entries: tuple[bytes, bytes]) -> bytes:
    return encode_batch([BatchEntry(9, body, props) for body, props in entries])


def test_a_batch_is_stored_as_a_whole_without_gaps(shell: Shell) -> None:
    """Law: a batch is stored with consecutive offsets, one record per message, and its ids joined in the answer."""
    create(shell, PLAIN)
    send(shell, e=1)
    body = batch_body((b"1", b"UNIQ_KEY\x01A"), (b"2", b"UNIQ_KEY\x01B\x02"), (b"3", b""))

    reply = shell.call(320, send_ext("orders", "WAIT\x01false", e=1, m="true"), body)

    assert (reply.code, reply.ext["queueOffset"], reply.ext["queueId"]) == (0, "1", "1")
    found = messages(pull(shell, queue=1, offset=1))
    assert [(each.body, each.queue_offset, each.flag) for each in found] == [
        (b"1", 1, 9),
        (b"2", 2, 9),
        (b"3", 3, 9),
    ]
    assert reply.ext["msgId"] == ",".join(
        f"C000026400002A9F{each.physical_offset:016X}" for each in found
    )
    assert [decode_properties(each.properties) for each in found] == [
        {"UNIQ_KEY": "A", "WAIT": "false", **STORED_WITH},
        {"UNIQ_KEY": "B", "WAIT": "false", **STORED_WITH},
        {"WAIT": "false", **STORED_WITH},
    ]


def test_the_key_of_a_batch_does_not_hide_those_of_its_messages(shell: Shell) -> None:
    """Law: a batch's own UNIQ_KEY, which 5.x clients add, does not replace those of its messages."""
    create(shell, PLAIN)
    body = batch_body((b"1", b"UNIQ_KEY\x01A"), (b"2", b""))

    shell.call(320, send_ext("orders", "UNIQ_KEY\x01BATCH\x02WAIT\x01true\x02", m="true"), body)

    keys = [decode_properties(each.properties)["UNIQ_KEY"] for each in messages(pull(shell))]
    assert keys == ["A", "BATCH"]


def test_a_repeated_batch_stores_only_what_is_new(shell: Shell) -> None:
    """Law: of a repeated or overlapping batch only new messages are stored."""
    create(shell, ORDERED)
    a, b, c = ((f"{n}".encode(), f"UNIQ_KEY\x01{n}".encode()) for n in "abc")
    ext = send_ext("orders", m="true")

    first = shell.call(320, ext, batch_body(a, b))
    same = shell.call(320, ext, batch_body(a, b))
    overlapping = shell.call(320, ext, batch_body(b, c))

    assert same.ext == first.ext
    assert overlapping.ext["queueOffset"] == "1"
    assert stored(shell) == [b"a", b"b", b"c"]


def test_the_answer_to_a_batch_known_in_part_names_each_place(shell: Shell) -> None:
    """Law: if a batch is known in part, the answer names each message's place, because they may not follow each other."""
    create(shell, ORDERED)
    a, b, c = ((f"{n}".encode(), f"UNIQ_KEY\x01{n}".encode()) for n in "abc")
    ext = send_ext("orders", m="true")

    assert "places" not in shell.call(320, ext, batch_body(a)).ext
    send(shell)
    fresh = shell.call(320, ext, batch_body(a, b, c)).ext
    again = shell.call(320, ext, batch_body(a, b, c)).ext

    assert (fresh["queueOffset"], fresh["places"]) == ("0", "0:0,0:2,0:3")
    assert again == fresh


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"garbage",
        batch_body((b"1", b"UNIQ_KEY\x01\xff")),
        batch_body((b"1", b"k\x01" + b"v" * 32_760)),
    ],
)
def test_a_bad_batch_is_refused_as_a_whole(shell: Shell, body: bytes) -> None:
    """Law: a bad batch is refused with 13, and none of its messages is stored."""
    create(shell, PLAIN)

    reply = shell.call(320, send_ext("orders", m="true"), body)

    assert (reply.code, shell.state.physical_end) == (13, 0)


def test_a_delayed_batch_is_released_together(shell: Shell) -> None:
    """Law: a delayed batch waits in the schedule queue and is delivered together."""
    create(shell, PLAIN)
    body = batch_body((b"1", b"DELAY\x011"), (b"2", b"DELAY\x011"))

    assert shell.call(320, send_ext("orders", m="true"), body).code == 0

    assert stored(shell) == []
    shell.pass_time(1_200)
    assert stored(shell) == [b"1", b"2"]


# -- large batches ---------------------------------------------------------------------------------


@pytest.mark.parametrize("host", ["192.0.2.100", "fd00::1"])
def test_the_answer_to_the_largest_batch_is_read_by_who_asked(host: str) -> None:
    """Law: the answer to the largest batch, with each place named, fits into a header that its sender can read."""
    shell = Shell(settings(address=Address(host, 10911)))
    places = [
        Place(QUEUES_MAX - 1, INT64_MAX - 2 * number, INT64_MAX)
        for number in range(BATCH_COUNT_MAX)
    ]
    command = request(RequestCode.SEND_BATCH_MESSAGE, send_ext("orders", m="true"))

    (effect,) = answer_places(shell.core.context, places, {}, command, ALICE)
    assert isinstance(effect, Send)
    (reply,) = FrameDecoder(header_size_max=ANSWER_HEADER_SIZE_MAX).receive_data(
        encode(effect.command)
    )

    for name in ("msgId", "places"):
        assert reply.ext[name].count(",") == BATCH_COUNT_MAX - 1


def many(count: int, *, last: bytes = b"last") -> bytes:
    """Return a batch of messages with unique keys; the body of the last one is *last*."""
    texts = [f"{number}".encode() for number in range(count - 1)] + [last]
    return batch_body(*((text, b"UNIQ_KEY\x01" + text) for text in texts))


def places(reply: RemotingCommand) -> list[str]:
    return reply.ext["msgId"].split(",")


def test_a_large_batch_is_stored_without_gaps_and_holds_nobody_up(shell: Shell) -> None:
    """Law: a large batch is read in steps that let other sends pass, and its pieces are stored without a gap."""
    create(shell, ORDERED)
    count = 3 * READ_COUNT_MAX + 7

    opaque = shell.submit(320, send_ext("orders", m="true"), many(count))
    assert shell.pending == []  # Nothing is proposed before all is read.
    meanwhile = shell.submit(310, send_ext("orders", e=1), b"meanwhile")
    shell.turn()
    assert shell.reply_to(meanwhile) is not None
    shell.settle()

    reply = shell.reply_to(opaque)
    assert reply is not None
    assert (reply.code, reply.ext["queueOffset"], len(set(places(reply)))) == (0, "0", count)
    queue = shell.state.topics.by_name["orders"].queues[0]
    assert queue.next_offset == count
    sizes = [len(each.records) for each in shell.proposals if len(each.records) == PIECE_COUNT]
    assert len(sizes) == count // PIECE_COUNT


def test_sends_of_one_connection_to_one_queue_are_stored_as_they_came(shell: Shell) -> None:
    """Law: sends of one connection to one queue keep their order, also behind a batch that is being read;
    a refused one delays no other.
    """
    create(shell, PLAIN)
    count = 2 * READ_COUNT_MAX
    first = shell.submit(320, send_ext("orders", m="true"), many(count))
    second = shell.submit(310, send_ext("orders"), b"second")
    refused = shell.submit(310, send_ext("orders", "DELAY\x01soon"), b"refused")
    third = shell.submit(320, send_ext("orders", m="true"), batch_body((b"third", b"")))
    other = shell.submit(310, send_ext("orders"), b"other", caller=BOB)
    shell.turn()
    assert [shell.reply_to(each) is None for each in (first, second, third, other)] == [
        True,
        True,
        True,
        False,
    ]
    shell.settle()

    replies = [shell.reply_to(each) for each in (other, first, second, third, refused)]
    answers = [(each.code, each.ext.get("queueOffset")) for each in replies if each is not None]
    assert answers == [(0, "0"), (0, "1"), (0, f"{count + 1}"), (0, f"{count + 2}"), (13, None)]
    assert not shell.core.sends._batches.waiting


def test_batches_share_what_is_read_between_two_turns(shell: Shell) -> None:
    """Law: several batches share the reading limit of a turn; each is answered in its turn."""
    create(shell, ORDERED)
    count = READ_COUNT_MAX // 2
    opaques = [
        shell.submit(320, send_ext("orders", m="true"), many(count, last=f"{i}".encode() * 9))
        for i in range(5)
    ]

    read = [sum(len(each.records) for each in shell.pending)]
    while shell.later:
        before = sum(len(each.records) for each in shell.pending)
        shell.go_on()
        read.append(sum(len(each.records) for each in shell.pending) - before)
    shell.settle()

    assert max(read) <= READ_COUNT_MAX
    assert [(reply := shell.reply_to(opaque)) and reply.code for opaque in opaques] == [0] * 5


def read_of_each_turn(shell: Shell) -> list[int]:
    """Return how many messages of the batch were read in each turn."""
    (batch,) = shell.core.sends._batches._queue
    assert isinstance(batch, _Batch)
    read = [0, len(batch.firsts)]
    while shell.later:
        shell.go_on()
        read.append(len(batch.firsts))

    return [after - before for before, after in pairwise(read)]


# Many small properties (30 KB), which each message of a batch gets.
COMMON = "".join(f"a{number}\x01b\x02" for number in range(4_500))[:30_000]


def test_many_properties_cost_a_turn_no_more_than_many_messages(shell: Shell) -> None:
    """Law: the more common properties a batch has, the fewer of its messages a turn reads."""
    create(shell, ORDERED)
    body = batch_body(*((b"", b"UNIQ_KEY\x01%d" % number) for number in range(40)))

    opaque = shell.submit(320, send_ext("orders", COMMON, m="true"), body)
    read = read_of_each_turn(shell)
    shell.settle()

    assert max(read) * len(COMMON) <= READ_COUNT_MAX * READ_COUNT_SIZE + len(COMMON)
    assert (reply := shell.reply_to(opaque)) is not None
    assert (reply.code, len(set(places(reply)))) == (0, 40)
    text = f"UNIQ_KEY\x017\x02{COMMON}"
    (message,) = messages(pull(shell, offset=7, maxMsgNums=1))
    assert message.properties.startswith(text.encode())
    assert decode_properties(message.properties) == decode_properties(text) | STORED_WITH


# As many bytes in few properties, which are read faster.
LARGE = "".join(f"a{number}\x01{'b' * 1_000}\x02" for number in range(30))[:30_000]


def test_messages_that_are_known_count_to_the_size_of_a_batch(shell: Shell) -> None:
    """Law: repeated messages in a batch count for its size, so that it is refused at the limit and not read to its end."""
    create(shell, ORDERED)
    body = batch_body(*[(b"", b"UNIQ_KEY\x01k\x02")] * 3_000)

    opaque = shell.submit(320, send_ext("orders", LARGE, m="true"), body)
    read = read_of_each_turn(shell)
    shell.settle()

    assert sum(read) * len(LARGE) <= PROPOSAL_SIZE_MAX
    assert max(read) * len(LARGE) <= READ_COUNT_MAX * READ_COUNT_SIZE + len(LARGE)
    assert (reply := shell.reply_to(opaque)) is not None
    assert (reply.code, shell.state.physical_end) == (13, 0)


def test_a_batch_as_large_as_may_be_is_known_when_it_is_repeated(shell: Shell) -> None:
    """Law: a repeat of the largest allowed batch is not larger and is known."""
    create(shell, ORDERED)
    size = len(LARGE) + 500  # With fields, identity and the properties that brokers add.
    keys = [b"UNIQ_KEY\x01%d" % number for number in range(PROPOSAL_SIZE_MAX // size)]
    body = batch_body(*((b"", key) for key in keys))
    ext = send_ext("orders", LARGE, m="true")

    first = shell.call(320, ext, body)
    repeated = shell.call(320, ext, body)

    assert (first.code, repeated.code, repeated.ext) == (0, 0, first.ext)


@pytest.mark.parametrize("count", [3, 2 * READ_COUNT_MAX])
def test_one_bad_message_at_the_end_refuses_a_batch_of_any_size(shell: Shell, count: int) -> None:
    """Law: one bad message at the end refuses a batch of any size; the next batch is served."""
    create(shell, ORDERED)
    good = [(b"1", b"UNIQ_KEY\x01%d" % number) for number in range(count)]
    bad = batch_body(*good, (b"2", b"k\x01" + b"v" * 32_760))

    reply = shell.call(320, send_ext("orders", m="true"), bad)
    behind = shell.call(320, send_ext("orders", m="true"), batch_body((b"3", b"")))

    assert (reply.code, behind.code, behind.ext["queueOffset"]) == (13, 0, "0")


def test_a_batch_that_is_being_read_ends_with_the_leadership(shell: Shell) -> None:
    """Law: when leadership ends, a batch that is being read is refused and leaves nothing."""
    create(shell, ORDERED)
    opaque = shell.submit(320, send_ext("orders", m="true"), many(2 * READ_COUNT_MAX))
    behind = shell.submit(310, send_ext("orders"), b"behind")

    shell.follow()
    shell.settle()

    for each in (opaque, behind):
        reply = shell.reply_to(each)
        assert reply is not None
        assert reply.code == ResponseCode.SERVICE_NOT_AVAILABLE
    shell.lead()
    assert shell.state.physical_end == 0


def test_leadership_that_ends_between_two_pieces_gives_no_answer(shell: Shell) -> None:
    """Law: if leadership ends between two pieces, no answer is given; a repeat stores the rest, each message once."""
    create(shell, ORDERED)
    body = many(2 * PIECE_COUNT)
    opaque = shell.submit(320, send_ext("orders", m="true"), body)
    shell.go_on()
    shell.go_on()
    first, second = shell.pending
    shell.pending = [first]
    shell.turn()
    shell.pending = [second]
    shell.lose_proposals()

    assert shell.reply_to(opaque) is None
    assert [close.connection for close in shell.closed] == [ALICE.connection]

    reply = shell.call(320, send_ext("orders", m="true"), body)

    assert (reply.code, reply.ext["queueOffset"], len(set(places(reply)))) == (
        0,
        "0",
        2 * PIECE_COUNT,
    )
    assert shell.state.topics.by_name["orders"].queues[0].next_offset == 2 * PIECE_COUNT


def test_batches_that_wait_are_bounded() -> None:
    """Law: the bytes of waiting batches are limited; beyond the limit the answer is 2 (busy)."""
    body = many(2 * READ_COUNT_MAX)
    shell = Shell(settings(raft=RaftSettings(uncommitted_size_max=4 * len(body)))).lead()
    create(shell, PLAIN)
    opaques = [shell.submit(320, send_ext("orders", m="true"), body) for _ in range(5)]

    codes = [(reply := shell.reply_to(opaque)) and reply.code for opaque in opaques]

    assert codes == [None, None, None, ResponseCode.SYSTEM_BUSY, ResponseCode.SYSTEM_BUSY]
    shell.settle()
    assert shell.call(320, send_ext("orders", m="true"), body).code == 0


def test_batches_that_wait_count_with_all_that_is_kept_of_them() -> None:
    """Law: a waiting batch counts with all that is kept of it, also large fields that nobody reads."""
    text = "".join(f"{number}\x01v\x02" for number in range(20_000))
    limit = 4 * len(text)
    shell = Shell(settings(raft=RaftSettings(uncommitted_size_max=limit))).lead()
    create(shell, PLAIN)
    small = batch_body((b"a", b""))
    shell.submit(320, send_ext("orders", m="true"), many(2 * READ_COUNT_MAX))
    tracemalloc.start()
    opaques = []
    for number in range(10):
        ext = send_ext("orders", m="true", junk=f"{number}" + text, more=f"{number}" + text)
        opaques.append(shell.submit(320, ext, small))
        del ext
    held, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()

    codes = [(reply := shell.reply_to(opaque)) and reply.code for opaque in opaques]
    assert codes == [None] + [ResponseCode.SYSTEM_BUSY] * 9
    assert held < limit


def test_no_piece_of_a_batch_is_refused_behind_which_another_is_stored(shell: Shell) -> None:
    """Law: at the size limit, the first piece is not refused while a later one is stored."""
    create(shell, PLAIN)
    common = "".join(f"a{number}\x01{'b' * 1_040}\x02" for number in range(12))
    send(shell, body=bytes(3_000), props=common)
    end = shell.state.physical_end
    # Without their records' size the messages fit the limit; with it the first piece does not.
    large = bytes(3_000 + 16_330 - end)
    body = batch_body(*[(large, b"")] * PIECE_COUNT, (b"last", b""))

    reply = shell.call(320, send_ext("orders", common, m="true"), body)

    assert (reply.code, shell.state.physical_end) == (13, end)


def test_a_batch_that_breaks_its_reader_stands_in_nobodys_way(
    shell: Shell, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Law: an unexpected error while a batch is read leaves nothing of it, and later batches are served."""
    create(shell, ORDERED)
    with monkeypatch.context() as patch:
        patch.setattr(shell.core.sends._batches, "_read", lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            shell.submit(320, send_ext("orders", m="true"), many(3))

    reply = shell.call(320, send_ext("orders", m="true"), many(3))

    assert (reply.code, reply.ext["queueOffset"]) == (0, "0")
    assert stored(shell) == [b"0", b"1", b"last"]


def in_two_pieces(shell: Shell, body: bytes) -> int:
    """Hand in a batch of two pieces that both wait for their entries; return its opaque."""
    opaque = shell.submit(320, send_ext("orders", m="true"), body)
    shell.go_on()
    shell.go_on()
    assert len(shell.pending) == 2
    return opaque


def lose_second(shell: Shell) -> None:
    """Lose leadership while the first piece is in the log and the second is not."""
    first, second = shell.pending
    shell.pending = [second]
    shell.follow()
    shell.lose_proposals()
    shell.go_on()
    shell.pending = [first]


def test_a_batch_whose_first_piece_may_be_stored_is_not_refused(shell: Shell) -> None:
    """Law: a batch whose first piece may be committed by the next leader is not refused; its connection is closed."""
    create(shell, PLAIN)
    opaque = in_two_pieces(shell, many(2 * PIECE_COUNT))

    lose_second(shell)

    assert shell.reply_to(opaque) is None
    assert [close.connection for close in shell.closed] == [ALICE.connection]
    shell.turn()
    assert shell.state.topics.by_name["orders"].queues[0].next_offset == PIECE_COUNT
    assert shell.reply_to(opaque) is None


def test_a_batch_of_which_all_pieces_are_lost_is_refused(shell: Shell) -> None:
    """Law: a batch whose pieces are all lost is refused, because nothing is stored for certain."""
    create(shell, ORDERED)
    opaque = in_two_pieces(shell, many(2 * PIECE_COUNT))

    shell.follow()
    shell.lose_proposals()
    shell.settle()

    reply = shell.reply_to(opaque)
    assert reply is not None
    assert reply.code == ResponseCode.SERVICE_NOT_AVAILABLE
    assert not shell.closed
    assert not shell.state.physical_end


def test_a_repeat_of_a_batch_that_is_stored_in_part_is_not_refused(shell: Shell) -> None:
    """Law: a repeat that waits for a batch stored in part is not refused either."""
    create(shell, ORDERED)
    body = many(2 * PIECE_COUNT)
    in_two_pieces(shell, body)
    repeat = shell.submit(320, send_ext("orders", m="true"), body, caller=BOB)
    shell.go_on()
    shell.go_on()

    lose_second(shell)
    shell.settle()

    assert shell.reply_to(repeat) is None
    assert BOB.connection in [close.connection for close in shell.closed]


def test_a_batch_that_is_known_in_part_is_not_refused_when_the_rest_is_lost(shell: Shell) -> None:
    """Law: a batch with an already stored message is not refused when the rest is lost."""
    create(shell, ORDERED)
    a, b = ((f"{n}".encode(), f"UNIQ_KEY\x01{n}".encode()) for n in "ab")
    shell.call(320, send_ext("orders", m="true"), batch_body(a))
    opaque = shell.submit(320, send_ext("orders", m="true"), batch_body(a, b))

    shell.follow()
    shell.lose_proposals()
    shell.settle()

    assert shell.reply_to(opaque) is None
    assert [close.connection for close in shell.closed] == [ALICE.connection]


def test_a_batch_that_is_known_in_part_is_not_refused_on_a_full_disk(shell: Shell) -> None:
    """Law: on a full disk, a batch known in part is not refused; a new one is."""
    create(shell, ORDERED)
    a, b, c = ((f"{n}".encode(), f"UNIQ_KEY\x01{n}".encode()) for n in "abc")
    shell.call(320, send_ext("orders", m="true"), batch_body(a))
    shell.core.set_environment(0.99, {})

    assert shell.ask(320, send_ext("orders", m="true"), batch_body(a, b)) is None
    assert [close.connection for close in shell.closed] == [ALICE.connection]
    fresh = shell.call(320, send_ext("orders", m="true"), batch_body(b, c))
    assert fresh.code == ResponseCode.SERVICE_NOT_AVAILABLE
    shell.core.set_environment(0.1, {})
    again = shell.call(320, send_ext("orders", m="true"), batch_body(b, c))
    assert (again.code, again.ext["queueOffset"]) == (0, "1")


def test_a_batch_that_is_known_in_part_is_not_refused_for_another_message(shell: Shell) -> None:
    """Law: nor is it refused because another message of it is wrong or was cancelled."""
    create(shell, ORDERED)
    a, b = ((f"{n}".encode(), f"UNIQ_KEY\x01{n}".encode()) for n in "ab")
    wrong = (b"c", b"UNIQ_KEY\x01c\x02TIMER_DELAY_MS\x015000\x02TIMER_DEL_UNIQKEY\x01a")
    shell.call(320, send_ext("orders", m="true"), batch_body(a))

    assert shell.ask(320, send_ext("orders", m="true"), batch_body(a, wrong)) is None
    assert [close.connection for close in shell.closed] == [ALICE.connection]
    assert shell.call(320, send_ext("orders", m="true"), batch_body(b, wrong)).code == 13
    assert stored(shell) == [b"a"]


def test_a_oneway_batch_that_is_stored_in_part_costs_nobody_a_connection(shell: Shell) -> None:
    """Law: a one-way batch stored in part costs no connection, because nobody waits for the answer."""
    create(shell, ORDERED)
    a, b = ((f"{n}".encode(), f"UNIQ_KEY\x01{n}".encode()) for n in "ab")
    shell.call(320, send_ext("orders", m="true"), batch_body(a))
    shell.core.set_environment(0.99, {})

    assert shell.ask(320, send_ext("orders", m="true"), batch_body(a, b), oneway=True) is None

    assert not shell.closed
