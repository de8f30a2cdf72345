"""The checks before the log: an admitted proposal can be applied, a refused one leaves no trace."""

import json
import struct
from collections import deque
from typing import Annotated, Any, get_args, get_origin, get_type_hints

import pytest
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from orderlymq_broker.core.effects import Propose
from orderlymq_broker.core.entrybuilder import (
    ENTRY_CHANGES_USUAL,
    ENTRY_SIZE_USUAL,
    PIECE_SIZE,
    PROPOSAL_SIZE_MAX,
    in_pieces,
    next_group,
)
from orderlymq_broker.core.messagedraft import MessageDraft, Properties
from orderlymq_broker.replication.transport.frames import FRAME_SIZE_MAX
from orderlymq_broker.state.records import (
    Append,
    AssignmentSet,
    Commit,
    DelayProgress,
    MemberLeft,
    MemberSeen,
    OffsetsCommitted,
    Record,
    Refused,
    RetentionAdvanced,
    Subscription,
    TopicDeleted,
    TopicSet,
    decode_records,
    encode_records,
)
from orderlymq_broker.state.schedule.timerrecords import TimersEnded
from orderlymq_broker.state.topics.topics import Topic
from orderlymq_broker.state.transactions.halfrecords import HalfEnded, HalfOpened
from orderlymq_broker.store.entry import split_entry
from orderlymq_protocol.codes import RequestCode, ResponseCode
from orderlymq_protocol.message.batch import BatchEntry, encode_batch
from orderlymq_protocol.message.record import pack_host
from tests.broker.processors.driver import Shell
from tests.broker.processors.halves import COMMIT, begin, end_ext, found, with_orders
from tests.broker.processors.requests import create, send, send_ext

HOST = pack_host("192.0.2.7", 4711)
ORDERS = TopicSet("orders", 4, 4, order=True)


def refused(shell: Shell) -> int:
    return shell.core.context.counters["proposals_refused"]


def message(topic: Topic, queue: Any = 0, body: bytes = b"x", properties: str = "") -> MessageDraft:
    return MessageDraft(topic, queue, body, Properties(properties), 0, 0, 1, HOST)


# -- what a record may hold -----------------------------------------------------------------------


@pytest.mark.parametrize(
    "record",
    [
        AssignmentSet("billing", "orders", (("demo-0", True, "c1"),)),
        AssignmentSet("billing", "orders", (("demo-0", 1.0, "c1"),)),  # type: ignore[arg-type]
        AssignmentSet("billing", "orders", (("demo-0", 0),)),  # type: ignore[arg-type]
        MemberSeen("g", "c", "a", version=2**63),
        MemberSeen("g", "c", "a", version=10**30),
        MemberSeen("g", "c", "a", version=None),  # type: ignore[arg-type]
        MemberSeen("g", "c\ud800", "a"),
        MemberSeen("g", "c", "a", subscriptions=(Subscription("t", codes=(1.5,)),)),  # type: ignore[arg-type]
        OffsetsCommitted((Commit("g", "t", -1, 0),)),
        OffsetsCommitted((Commit("g", "t", 2**31, 0),)),
        Append(1, 0, 0, 0, 91, 0, 1),
        HalfOpened(0, 0, "g", "t", "u", 0),
    ],
)
def test_a_record_that_no_replica_could_apply_is_refused(shell: Shell, record: Record) -> None:
    """Law: only the bad record is refused; proposals before and after it are stored."""
    create(shell, ORDERS)
    answers: list[Any] = []
    bad = Propose([record], lambda *_: [], lambda refusal: answers.append(refusal) or [])  # type: ignore[func-returns-value]

    opaque = shell.submit(310, send_ext("orders"), b"before")
    shell.run([bad])
    later = shell.submit(310, send_ext("orders"), b"after")
    shell.settle()

    (refusal,) = answers
    assert refusal.code == ResponseCode.SYSTEM_ERROR
    assert "cannot be stored" in refusal.remark
    assert refused(shell) == 1
    replies = [shell.reply_to(each) for each in (opaque, later)]
    assert [reply.ext["queueOffset"] for reply in replies if reply is not None] == ["0", "1"]
    assert shell.core.context.entries.uncommitted == 0


def test_a_division_with_true_for_a_queue_is_refused_by_name(shell: Shell) -> None:
    """Law: JSON's `true` is an int in Python, but no queue number; the refusal names the expected form."""
    ext = {"consumerGroup": "billing", "topic": "orders"}

    reply = shell.call(RequestCode.ORDERLYMQ_SET_ASSIGNMENT, ext, b'[["demo-0", true, "c1"]]')

    assert reply.code == ResponseCode.SYSTEM_ERROR
    assert "write [broker name, queue, client id]" in (reply.remark or "")


@pytest.mark.parametrize("version", ["9" * 30, 2**63, True])
def test_a_heartbeat_with_a_number_of_no_java_type_is_refused(shell: Shell, version: Any) -> None:
    """Law: a number outside Java's type is refused, as Java's broker does; the next heartbeat is checked again."""
    subscription = {"topic": "orders", "subVersion": version}
    consumer = {"groupName": "billing", "subscriptionDataSet": [subscription]}
    body = {"clientID": "c", "consumerDataSet": [consumer], "producerDataSet": []}

    reply = shell.call(34, {}, json.dumps(body).encode())

    assert reply.code == ResponseCode.SYSTEM_ERROR
    assert "subVersion" in (reply.remark or "")
    subscription["subVersion"] = 1
    assert shell.call(34, {}, json.dumps(body).encode()).code == 0


def test_commits_of_others_survive_a_refusal(shell: Shell) -> None:
    """Law: offset commits in the same proposal as a bad record are still stored, because they may come from other clients."""
    create(shell, ORDERS)
    commits = OffsetsCommitted((Commit("billing", "orders", 0, 7),))

    shell.run([Propose([commits, MemberLeft("g", "\ud800")])])
    shell.settle()

    assert shell.state.offsets.get("billing", "orders", 0) == 7


# -- size -----------------------------------------------------------------------------------------


def test_an_entry_stays_far_below_a_frame() -> None:
    """Law: an entry is far smaller than a frame between replicas, so that several entries share one."""
    assert PROPOSAL_SIZE_MAX + ENTRY_SIZE_USUAL <= FRAME_SIZE_MAX // 3


def test_a_small_batch_that_would_be_a_huge_entry_is_refused_by_name(shell: Shell) -> None:
    """Law: a batch that would become a huge entry is refused.

    Here 80 KB on the wire (2 300 empty messages, 30 KB of common properties) make 69 MB in the log.
    """
    create(shell, ORDERS)
    body = encode_batch([BatchEntry(0, b"", b"")] * 2_300)
    ext = send_ext("orders", "k\x01" + "v" * 30_000, m="true")

    reply = shell.call(320, ext, body)

    assert reply.code == ResponseCode.MESSAGE_ILLEGAL
    assert "split it" in (reply.remark or "")
    assert shell.core.context.entries.uncommitted == 0
    assert send(shell).ext["queueOffset"] == "0"


def test_a_proposal_over_the_limit_is_refused_by_name(shell: Shell) -> None:
    """Law: the size limit counts encoded bodies, properties and records; the refusal says to split the batch."""
    topic = Topic(1, ORDERS)
    body = bytes(PROPOSAL_SIZE_MAX // 4)
    drafts = [message(topic, body=body) for _ in range(4)]

    refusal = shell.core.context.entries.admit(Propose(drafts))

    assert refusal is not None
    assert refusal.code == ResponseCode.MESSAGE_ILLEGAL
    assert "split it" in refusal.remark
    assert shell.core.context.entries.admit(Propose(drafts[:3])) is None


def test_abandoned_halves_are_given_up_in_pieces(shell: Shell) -> None:
    """Law: many abandoned half messages are given up in several entries: nine of 1 MiB are not one entry of 9 MiB."""
    with_orders(shell)
    for number in range(9):
        begin(shell, bytes(1 << 20), f"U{number}")
    shell.wall_ms += shell.settings.storage.retention_ms
    before = len(shell.log)

    shell.pass_time(5_000)

    assert not shell.state.transactions.open
    assert len(shell.state.transactions.given_up) == 9
    assert max(map(len, shell.log[before:])) < ENTRY_SIZE_USUAL + (1 << 20)
    assert shell.core.context.counters["transactions_given_up"] == 9


@given(sizes=st.lists(st.integers(1, 2_000), max_size=60))
def test_works_are_cut_into_pieces_in_their_order(sizes: list[int]) -> None:
    """Law: a long list of records is cut into pieces in its order; only a single large record may exceed a piece's size."""
    records = [MemberLeft("g" * 1_000, "c" * (100 * size)) for size in sizes]

    pieces = [list(piece.records) for piece in in_pieces(records) if isinstance(piece, Propose)]

    assert [record for piece in pieces for record in piece] == records
    for piece in pieces:
        size = sum(len(encode_records([each])) for each in piece if isinstance(each, MemberLeft))
        assert len(piece) == 1 or size <= PIECE_SIZE


@pytest.mark.parametrize(
    ("sizes", "pieces"),
    [
        ([], []),
        ([100, 100, 100], [3]),
        ([PIECE_SIZE - 100, 100], [2]),
        ([PIECE_SIZE - 100, 101], [1, 1]),
        ([PIECE_SIZE + 1, 100], [1, 1]),
        ([PIECE_SIZE, PIECE_SIZE - 100, 100, PIECE_SIZE], [1, 2, 1]),
        ([PIECE_SIZE // 4] * 9, [4, 4, 1]),
    ],
)
def test_a_piece_takes_all_that_has_room_in_it(sizes: list[int], pieces: list[int]) -> None:
    """Law: a piece takes as many records as fit, so that no entry is empty and there are as few as possible."""

    def of_size(size: int) -> Record:
        room = len(encode_records([MemberLeft("g", "c" * size)])) - size
        return MemberLeft("g", "c" * (size - room))

    records = [of_size(size) for size in sizes]
    assert [len(encode_records([record])) for record in records] == sizes

    found = [list(piece.records) for piece in in_pieces(records) if isinstance(piece, Propose)]

    assert [len(piece) for piece in found] == pieces
    assert [record for piece in found for record in piece] == records


def test_a_bad_record_costs_no_other_its_piece(shell: Shell) -> None:
    """Law: a bad record does not cost the others of its piece, because pieces mix records of many clients."""
    create(shell, ORDERS)
    for client in ("one", "two"):
        create(shell, MemberSeen("billing", client, "a"))

    records = [
        MemberLeft("billing", "one"),
        MemberLeft("g", "\ud800"),
        MemberLeft("billing", "two"),
    ]
    shell.run(in_pieces(records))
    shell.settle()

    assert refused(shell) == 1
    assert not shell.state.members.of_group("billing")


# -- offsets --------------------------------------------------------------------------------------


@pytest.mark.interpreted
def test_a_request_that_fails_half_way_takes_no_place(
    shell: Shell, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Law: if a request fails before its message is handed in, the next message gets the next offset, without a gap."""
    create(shell, ORDERS)
    send(shell)

    def broken(*_: Any) -> Any:
        raise RuntimeError("planted")

    with monkeypatch.context() as planted:
        planted.setattr(shell.core.sends, "_propose", broken)
        with pytest.raises(RuntimeError, match="planted"):
            shell.submit(310, send_ext("orders"), b"x")

    assert send(shell).ext["queueOffset"] == "1"
    assert shell.core.context.entries.physical_next == shell.state.physical_end


def test_an_entry_that_was_refused_by_the_log_gives_its_places_again(shell: Shell) -> None:
    """Law: when the log refuses an entry, its messages get their offsets again in the order of arrival."""
    create(shell, ORDERS)
    entries = shell.core.context.entries
    first = shell.submit(310, send_ext("orders"), b"1")
    entries.build(shell.pending, shell.wall_ms)
    second = shell.submit(310, send_ext("orders"), b"2")
    shell.settle()

    replies = [shell.reply_to(each) for each in (first, second)]
    assert [reply.ext["queueOffset"] for reply in replies if reply is not None] == ["0", "1"]


def test_store_times_never_fall_within_a_queue(shell: Shell) -> None:
    """Law: store times never fall within a queue, even if the clock is set back before anything is applied."""
    create(shell, ORDERS)
    entries = shell.core.context.entries
    times = []
    for wall_ms in (1_000, 500, 2_000):
        draft = message(shell.state.topics.by_name["orders"])
        proposal = Propose([draft])
        assert entries.admit(proposal) is None
        built = entries.build([proposal], wall_ms)
        entries.proposed(built)
        (record,) = decode_records(split_entry(built.data).meta)
        assert isinstance(record, Append)
        times.append(record.store_timestamp)

    assert times == [1_000, 1_000, 2_000]


def test_an_entry_gives_each_message_its_place(shell: Shell) -> None:
    """Law: offsets count up in each queue and physical offsets in the entry, across several proposals."""
    create(shell, ORDERS)
    orders = shell.state.topics.by_name["orders"]
    entries, begin_at = shell.core.context.entries, shell.core.context.entries.physical_next
    proposals = []
    for queues in ((0, 1), (0,), (1, 0)):
        drafts = [(message(orders, queue)) for queue in queues]
        proposals.append(Propose([*drafts, DelayProgress(1, 0, 2)]))
        assert entries.admit(proposals[-1]) is None

    built = [entries.build(proposals[:2], 1_000)]
    entries.proposed(built[0])
    built.append(entries.build(proposals[2:], 2_000))

    size = len(proposals[0].records[0].stored)  # type: ignore[union-attr]  # a draft
    records = [decode_records(split_entry(each.data).meta) for each in built]
    appends = [each for entry in records for each in entry if isinstance(each, Append)]
    assert [
        (each.queue_id, each.queue_offset, each.physical, each.size, each.store_timestamp)
        for each in appends
    ] == [
        (0, 0, begin_at, size, 1_000),
        (1, 0, begin_at + size, size, 1_000),
        (0, 1, begin_at + 2 * size, size, 1_000),
        (1, 1, begin_at + 3 * size, size, 2_000),
        (0, 2, begin_at + 4 * size, size, 2_000),
    ]
    assert [len(entry) for entry in records] == [5, 3]
    assert built[1].heads == {orders.queue(0): (3, 2_000), orders.queue(1): (2, 2_000)}
    assert [each.physical_end for each in built] == [begin_at + 3 * size, begin_at + 5 * size]
    assert entries.physical_next == begin_at + 3 * size, "the second is not in the log yet"


def test_what_waits_is_due_its_delay_after_its_store_time(shell: Shell) -> None:
    """Law: a delayed message is due its delay after its store time, and 0 is a delay. Without a delay the tags code stays."""
    create(shell, ORDERS)
    entries = shell.core.context.entries
    codes = []
    for delay_ms in (-1, 0, 5):
        orders = shell.state.topics.by_name["orders"]
        draft = message(orders).wait_in(orders, 0, 7)
        draft.delay_ms = delay_ms
        assert entries.admit(Propose([draft])) is None
        (record,) = decode_records(split_entry(entries.build([Propose([draft])], 1_000).data).meta)
        assert isinstance(record, Append)
        codes.append(record.tags_code)

    assert codes == [7, 1_000, 1_005]


def test_what_was_given_and_never_applied_is_given_again_by_the_next_leadership(
    shell: Shell,
) -> None:
    """Law: a new leadership gives offsets from the applied log on; offsets of lost entries are given again."""
    create(shell, ORDERS)
    entries, begin_at = shell.core.context.entries, shell.core.context.entries.physical_next
    given = []
    for _ in range(2):
        proposal = Propose([message(shell.state.topics.by_name["orders"])])
        assert entries.admit(proposal) is None
        built = entries.build([proposal], 1_000)
        entries.proposed(built)
        given += [
            (each.queue_offset, each.physical)
            for each in decode_records(split_entry(built.data).meta)
            if isinstance(each, Append)
        ]
        entries.reset(begin_at)

    assert given == [(0, begin_at), (0, begin_at)]


# -- what depends on a message --------------------------------------------------------------------


def test_a_commit_whose_topic_goes_meanwhile_leaves_its_half_open(shell: Shell) -> None:
    """Law: if the topic is deleted before the commit, the half message stays open and the producer gets an error.

    When the topic is back, a commit delivers it.
    """
    with_orders(shell)
    half = begin(shell)
    shell.run([Propose([TopicDeleted("orders")])])
    opaque = shell.submit(37, end_ext(half, COMMIT))
    shell.settle()

    reply = shell.reply_to(opaque)
    assert reply is not None
    assert reply.code == ResponseCode.TOPIC_NOT_EXIST
    assert list(shell.state.transactions.open) == [half[0]]
    with_orders(shell)
    assert shell.call(37, end_ext(half, COMMIT)).code == 0
    assert found(shell) == [b"paid"]


# -- any proposals --------------------------------------------------------------------------------

# Records whose correctness depends on what the leader has read before; the services that make them have tests of that.
_OF_SERVICES = {DelayProgress, TimersEnded, RetentionAdvanced, HalfOpened, Append}
# Not the empty name: requests with it are refused, and a lock with it would mark the whole consumer group.
_NAMES = st.sampled_from(["orders", "billing", "c1", "ü", "x" * 300])
_ODD = st.sampled_from(
    [True, None, 1.0, 1.5, -1, 2**31, 2**63, 2**64, 10**30, "\ud800", b"\xff", "7", (), [1]]
)


def _values(hint: Any) -> st.SearchStrategy[Any]:
    """Return values for the type that a field declares."""
    origin, arguments = get_origin(hint), get_args(hint)
    if origin is Annotated:
        bounds = arguments[1]
        # Thousands of queues would only make the test slow.
        edges = [bounds.ge, bounds.le if bounds.le > 1 << 20 else bounds.ge]
        return st.sampled_from(edges) | st.integers(max(bounds.ge, -3), 20)
    if origin is tuple and arguments[-1] is Ellipsis:
        return st.lists(_values(arguments[0]), max_size=3).map(tuple)
    if origin is tuple:
        return st.tuples(*map(_values, arguments))
    if origin is dict:
        return st.dictionaries(_values(arguments[0]), _values(arguments[1]), max_size=2)
    if arguments:
        return st.one_of(*map(_values, arguments))
    plain = {str: _NAMES, bool: st.booleans(), int: st.integers(0, 9), type(None): st.none()}
    if hint in plain:
        return plain[hint]

    return _records(hint) if hasattr(hint, "__struct_fields__") else st.sampled_from(list(hint))


def _records(kind: Any) -> st.SearchStrategy[Any]:
    hints = get_type_hints(kind, include_extras=True)
    fields = {name: _values(hints[name]) for name in kind.__struct_fields__}
    right = st.fixed_dictionaries(fields)
    odd = st.tuples(right, st.sampled_from(kind.__struct_fields__), _ODD).map(
        lambda drawn: {**drawn[0], drawn[1]: drawn[2]}
    )

    return st.one_of(right, right, right, odd).map(lambda values: kind(**values))


RECORDS = st.one_of(
    *(_records(kind) for kind in sorted(get_args(Record), key=str) if kind not in _OF_SERVICES)
)
MESSAGES = st.fixed_dictionaries(
    {
        "queue": st.sampled_from([0, 1, 3, True, -1, 2**31, None]),
        "properties": st.sampled_from(["", "TAGS\x01paid", "KEYS\x01a b", "\ud800", "p" * 40_000]),
        "body": st.sampled_from([b"", b"x" * 300]),
    }
)


@pytest.mark.interpreted
@hypothesis_settings(max_examples=60, deadline=None)
@given(
    work=st.lists(st.lists(MESSAGES | RECORDS, max_size=4), max_size=6),
    entries_of=st.integers(1, 4),
)
def test_what_is_admitted_is_applied_and_what_is_refused_leaves_no_trace(
    work: list[list[Any]], entries_of: int
) -> None:
    """Law: every replica can decode and apply what was admitted, with the offsets that were given;
    a refusal leaves nothing uncommitted.
    """
    shell = Shell().lead()
    create(shell, ORDERS)
    builder = shell.core.context.entries
    admitted: list[Propose] = []
    for records in work:
        topic = shell.state.topics.by_name.get("orders") or Topic(99, ORDERS)
        made = [(message(topic, **each)) if isinstance(each, dict) else each for each in records]
        before = (builder.uncommitted, builder.physical_next)
        proposal = Propose(made)
        if builder.admit(proposal) is not None:
            assert (builder.uncommitted, builder.physical_next) == before
            continue
        admitted.append(proposal)
        if len(admitted) == entries_of:
            _commit(shell, admitted)
            admitted = []
    _commit(shell, admitted)

    assert builder.uncommitted == 0
    assert builder.physical_next == shell.state.physical_end
    shell.replay()
    shell.restart()


def _commit(shell: Shell, proposals: list[Propose]) -> None:
    builder = shell.core.context.entries
    built = builder.build(proposals, shell.wall_ms)
    builder.proposed(built)
    outcomes = shell.apply(built.data)
    builder.settle(proposals)
    records = decode_records(split_entry(built.data).meta)
    assert len(outcomes) == len(records) == sum(len(each.records) for each in proposals)
    for record, outcome in zip(records, outcomes, strict=True):
        if isinstance(record, Append):
            assert outcome == record or isinstance(outcome, Refused)
    assert len(built.data) <= sum(each.size for each in proposals) + 64


@given(
    sizes=st.lists(
        st.tuples(st.integers(0, 3 * ENTRY_SIZE_USUAL), st.integers(0, 3 * ENTRY_CHANGES_USUAL)),
        min_size=1,
        max_size=12,
    )
)
def test_entries_take_proposals_in_their_order(sizes: list[tuple[int, int]]) -> None:
    """Law: an entry takes proposals in order: at least one, and no more bytes or changes than an entry usually holds."""
    record = OffsetsCommitted(())
    proposals = [Propose([record], size=size, changes_count=count) for size, count in sizes]
    collected = deque(proposals)
    groups = []
    while collected:
        groups.append(next_group(collected))

    assert [each for group in groups for each in group] == proposals
    for group in groups:
        assert len(group) == 1 or (
            sum(each.size for each in group) <= ENTRY_SIZE_USUAL
            and sum(each.changes_count for each in group) <= ENTRY_CHANGES_USUAL
        )


def test_a_number_that_does_not_fit_its_field_is_refused(shell: Shell) -> None:
    """Law: a number that does not fit its field in a stored message is refused;
    else struct would raise in the leader's turn.
    """
    create(shell, ORDERS)
    draft = message(shell.state.topics.by_name["orders"])
    draft.flag = 2**31
    with pytest.raises(struct.error):
        (draft).lay_out(HOST)

    refusal = shell.core.context.entries.admit(Propose([draft]))

    assert refusal is not None
    assert refusal.code == ResponseCode.MESSAGE_ILLEGAL


@pytest.mark.interpreted
@pytest.mark.parametrize(
    ("name", "number", "fits"),
    [
        ("code", 2**63 - 1, True),
        ("code", -(2**63), True),
        ("code", 2**63, False),
        ("code", -(2**63) - 1, False),
        ("code", True, False),
        ("into_queue", 2**31 - 1, True),
        ("into_queue", 2**31, False),
        ("into_queue", -1, False),
        ("into_queue", True, False),
        ("queue_id", 2**31 - 1, True),
        ("queue_id", 2**31, False),
        ("queue_id", True, False),
    ],
)
def test_a_number_of_the_record_is_checked_by_itself(
    shell: Shell, name: str, number: int, fits: bool
) -> None:
    """Law: each number of a record is checked by itself, because no replica could apply one that is out of range."""
    create(shell, ORDERS)
    orders = shell.state.topics.by_name["orders"]
    draft = message(orders).wait_in(orders, 0, 0)
    setattr(draft, name, number)

    refusal = shell.core.context.entries.admit(Propose([draft]))

    assert (refusal is None) == fits


def test_halves_and_their_ends_need_their_messages(shell: Shell) -> None:
    """Law: if the append of a transaction's message is refused, so is the committed end of its half message."""
    with_orders(shell)
    half = begin(shell)
    gone = Topic(99, ORDERS)
    draft = message(gone)

    shell.run([Propose([draft, HalfEnded(half[0], committed=True)])])
    shell.settle()

    assert list(shell.state.transactions.open) == [half[0]]
