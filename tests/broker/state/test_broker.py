"""The state of a broker as a whole: its digest, which replicas compare, and its invariants."""

from collections.abc import Callable

import pytest

from orderlymq_broker.state.admin.settingsrecords import SettingsSet
from orderlymq_broker.state.broker import BrokerState
from orderlymq_broker.state.groups.lockrecords import ClientDead, LocksRequested
from orderlymq_broker.state.groups.parkedkeyrecords import KeyParked
from orderlymq_broker.state.records import (
    AssignmentSet,
    Commit,
    DelayProgress,
    GroupSet,
    MemberSeen,
    OffsetsCommitted,
    OffsetsReset,
    Record,
    RetentionAdvanced,
    TopicDeleted,
    TopicSet,
)
from orderlymq_broker.state.tables import TableWrites
from orderlymq_broker.state.topics.queues import load_queues, write_floor
from orderlymq_broker.store.kv import Batch
from tests.broker.state.entries import WALL_MS, Replica
from tests.broker.store.memory import MemoryStore

KNOWN = (TopicSet("orders", 4, 4), GroupSet("billing"))
LOCKS = LocksRequested("billing", "c1", "h:1", 1_000, (("orders", 0),))


def known() -> Replica:
    replica = Replica()
    replica.take(*KNOWN)
    replica.append(replica.topic_id(), identity=b"A")
    replica.take(LOCKS)
    return replica


@pytest.mark.parametrize(
    "record",
    [
        TopicSet("returns", 1, 1),
        TopicDeleted("orders"),
        GroupSet("audit"),
        OffsetsCommitted((Commit("audit", "orders", 0, 7),)),
        OffsetsReset((Commit("billing", "orders", 0, 7),)),
        LOCKS,
        LocksRequested("billing", "c2", "h:1", 1_000, (("orders", 1),)),
        MemberSeen("billing", "c1", "h:1"),
        AssignmentSet("billing", "orders", (("broker-a", 0, "c1"),)),
        SettingsSet({"flow.uncommittedBytesMax": ("1", "test")}),
        DelayProgress(3, 0, 5),
        ClientDead("nobody", "pod gone", token=5),
        KeyParked("billing", "orders", 0, "k", 5, "M", 1),
        RetentionAdvanced((), 1),
    ],
    ids=lambda record: type(record).__name__,
)
def test_replicas_that_differ_in_anything_have_different_digests(record: Record) -> None:
    """Law: a replica that differs in a single row has another digest, so that the next comparison finds it."""
    one, other = known(), known()
    assert one.state.digest() == other.state.digest()

    one.take(record)
    other.take()

    assert one.state.digest() != other.state.digest()


def test_a_digest_is_as_long_as_a_hash_of_128_bits() -> None:
    """Law: a digest is a text of 32 hexadecimal digits (128 bits); replicas compare it and log it."""
    digest = BrokerState(MemoryStore()).digest()

    assert (len(digest), len(bytes.fromhex(digest))) == (32, 16)


def test_an_empty_store_is_the_state_before_the_first_entry() -> None:
    """Law: with an empty store nothing is applied, and the log begins at its first byte."""
    state = Replica().state

    assert (state.applied_index, state.physical_end, state.floor) == (0, 0, 0)
    assert (state.last_timestamp, state.operator_token, state.delay) == (0, 0, {})


def test_a_restart_brings_back_how_far_the_log_has_come() -> None:
    """Law: a restart restores the position in the log, the newest store time and the greatest operator token."""
    replica = known()
    replica.append(replica.topic_id(), 1, timestamp=WALL_MS + 5)
    replica.append(replica.topic_id(), 0, timestamp=WALL_MS + 3)
    replica.take(ClientDead("c2", "pod gone", token=9), RetentionAdvanced((), 1))

    again = replica.restarted().state

    # The newest time of all queues counts, even if another queue was written last.
    assert again.last_timestamp == WALL_MS + 5
    assert again.applied_index == replica.state.applied_index
    assert (again.physical_end, again.floor) == (replica.state.physical_end, 1)
    assert again.operator_token == 9


def test_what_is_left_of_a_queue_without_its_topic_is_passed_over() -> None:
    """Law: a queue's row whose topic is gone is skipped and does not keep a replica from starting."""
    replica = known()
    (queue,) = load_queues(replica.store).values()
    writes, batch = TableWrites(), Batch()
    queue.topic_id += 7
    write_floor(queue, writes)
    writes.flush(batch)
    replica.store.write(batch, sync=True)

    again = replica.restarted()

    assert [topic.id for topic in again.state.topics.by_id.values()] == [replica.topic_id()]
    assert again.state.digest() == replica.state.digest()


def _broken(state: BrokerState) -> dict[str, Callable[[], object]]:
    """Return the ways to break each table, by the table's name."""
    return {
        "topics": lambda: state.topics.by_name.pop("orders"),
        "locks": lambda: setattr(state.locks, "held_count", 7),
        "members": lambda: state.members._groups.update(billing={}),
        "dedup": state.dedup.sends.clear,
        "transactions": lambda: state.transactions.open_by_group.update(["billing"]),
        "timers": lambda: setattr(state.timers, "checksum", 1),
        "parked": lambda: state.parked._held.groups.update(billing={}),
        "floor": lambda: setattr(state, "floor", state.physical_end + 1),
        "tail": lambda: setattr(state.tail, "size", 1),
        "end": lambda: setattr(state, "physical_end", 0),
    }


@pytest.mark.interpreted
@pytest.mark.parametrize("table", list(_broken(BrokerState(MemoryStore()))))
def test_a_state_that_contradicts_itself_is_found_out(table: str) -> None:
    """Law: the check of invariants compares every table with the others and finds a contradiction."""
    state = known().state
    state.check_invariants()

    _broken(state)[table]()

    with pytest.raises(AssertionError):
        state.check_invariants()


@pytest.mark.parametrize(
    ("orderly", "locks", "ordered"),
    [(False, False, False), (True, False, True), (False, True, True), (True, True, True)],
)
def test_a_group_is_ordered_by_its_settings_or_by_its_first_lock(
    orderly: bool, locks: bool, ordered: bool
) -> None:
    """Law: a consumer group is ordered if its settings say so or if it has taken a lock; an unknown one is not."""
    replica = Replica()
    replica.take(TopicSet("orders", 4, 4), GroupSet("billing", orderly=orderly))
    if locks:
        replica.take(LOCKS)

    assert replica.state.is_ordered("billing") == ordered
    assert not replica.state.is_ordered("nobody")
