"""What a replica writes at its first start, and what it refuses at a later one."""

from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from orderlymq_broker.replication.recovery import Recovery
from orderlymq_broker.replication.replicainstance import (
    bootstrap,
    promise_to_stick,
    refuse_lost_end,
    sticks_ms,
)
from orderlymq_broker.settings import Address, BrokerSettings, RaftSettings
from orderlymq_broker.state.broker import BrokerState
from orderlymq_broker.state.records import (
    Commit,
    OffsetsCommitted,
    RetentionAdvanced,
    TopicDeleted,
)
from orderlymq_broker.store.kv import Batch, Family, StoreError
from orderlymq_broker.store.layout import message_key, queue_key
from orderlymq_broker.store.raftlog import RaftLogStore
from orderlymq_raft import Membership
from tests.broker.doctor.test_doctor import Writer
from tests.broker.store.memory import MemoryStore

SETTINGS = BrokerSettings(
    cluster="C",
    group="g",
    node_id=1,
    peers={node: Address("127.0.0.1", 7000 + node) for node in (1, 2, 3)},
    address=Address("127.0.0.1", 10911),
    http=Address("127.0.0.1", 8000),
    data_dir=Path("unused"),
)


def started(settings: BrokerSettings) -> tuple[Membership, bool]:
    """Return membership and recovery mode of a replica that starts with an empty disk."""
    store = MemoryStore()
    bootstrap(settings, store, RaftLogStore(store, 0))
    return RaftLogStore(store, 0).initial_state()[1], Recovery(store).active


def test_a_founder_begins_with_all_voters_and_without_a_memory() -> None:
    """Law: a founder starts in recovery, because it may have lost its disk; it does not vote before it has caught up."""
    membership, forgotten = started(SETTINGS)

    assert sorted(membership.voters) == [1, 2, 3]
    assert forgotten


def test_a_replica_that_joins_begins_without_a_memory_too() -> None:
    """Law: a replica that joins starts in recovery too; after a promotion and a lost disk it starts with the same
    settings.
    """
    membership, forgotten = started(msgspec.structs.replace(SETTINGS, join=True))

    assert (membership.members, forgotten) == (frozenset(), True)


def test_a_lone_replica_begins_without_a_memory_too() -> None:
    """Law: a single replica starts in recovery too, because its group may have grown; a group of one elects it anyway."""
    alone = msgspec.structs.replace(SETTINGS, peers={1: SETTINGS.peers[1]})

    assert started(alone) == (Membership(frozenset({1})), True)  # type: ignore[arg-type]  # ids


SHORT, LONG = RaftSettings(election_ms=200), RaftSettings(election_ms=1_000)


def test_a_shorter_election_time_out_leaves_the_former_promise_in_force() -> None:
    """Law: a shorter election time-out does not shorten the former promise to a leader until that has expired once."""
    store = MemoryStore()
    later: list[tuple[float, Callable[[], None]]] = []

    def start(settings: RaftSettings) -> int:
        """Return the promise of a process that starts after a crash."""
        nonlocal store
        store = store.crash()
        return promise_to_stick(
            settings, store, lambda seconds, call: later.append((seconds, call))
        )

    promises = [start(LONG), start(SHORT), start(SHORT)]
    seconds, expired = later.pop()
    expired()
    store.write(Batch(), sync=True)

    assert promises == [1_000, 1_000, 1_000]
    assert seconds == 1.0
    assert [start(SHORT), start(LONG), start(SHORT)] == [200, 1_000, 1_000]


def test_peers_are_shown_less_than_a_replica_sticks() -> None:
    """Law: peers are told a shorter stickiness than the real one, because a leader may be heard at the end of a tick."""
    assert (sticks_ms(SHORT), sticks_ms(LONG)) == (175, 975)


def filled(data_dir: Path) -> Writer:
    """A replica with two topics; a commit follows its newest message."""
    writer = Writer(data_dir)
    writer.topic("bills")
    writer.topic("orders")
    writer.send("bills", 0, 3)
    writer.send("orders", 2, 5)
    writer.enter([OffsetsCommitted((Commit("billing", "orders", 2, 1),))], [])
    return writer


def look(writer: Writer) -> None:
    """Check the store as a start does."""
    log = RaftLogStore(writer.store, 0)
    refuse_lost_end(log, BrokerState(writer.store), writer.store)


def test_a_store_that_has_all_is_started(tmp_path: Path) -> None:
    """Law: a complete store passes, also if the newest message is of a deleted topic,
    was dropped by retention or does not exist.
    """
    look(empty := Writer(tmp_path / "empty"))
    empty.close()
    writer = filled(tmp_path / "data")
    look(writer)
    writer.enter([TopicDeleted("orders")], [])
    look(writer)
    writer.enter([RetentionAdvanced((), floor=writer.log.physical_end())], [])
    look(writer)
    writer.close()


@pytest.mark.parametrize("lost", ["entries", "last entry", "message", "messages"])
def test_a_store_that_has_lost_its_newest_messages_is_not_started(
    tmp_path: Path, lost: str
) -> None:
    """Law: a store that lost its newest messages does not start; it would give their offsets again or lead consumers past
    them.
    """
    writer = filled(tmp_path)
    topic_id = writer.state.topics.by_name["orders"].id
    keys = [queue_key(topic_id, 2, offset) for offset in range(5)]
    last = writer.store.get(Family.CONSUME_QUEUE, keys[4])
    assert last is not None
    batch = Batch()
    match lost:
        case "entries":
            batch.delete_range(Family.CONSUME_QUEUE, keys[0], queue_key(topic_id, 2, 5))
        case "last entry":
            batch.delete(Family.CONSUME_QUEUE, keys[4])
        case "message":
            batch.delete(Family.MESSAGES, last[:8])
        case "messages":
            batch.delete_range(Family.MESSAGES, message_key(0), message_key(1 << 40))
    writer.store.write(batch, sync=True)

    with pytest.raises(StoreError, match=r"are lost|missing|does not match"):
        look(writer)

    writer.close()
