"""The writes of a replica at its very first start."""

from collections.abc import Callable
from pathlib import Path

import msgspec

from orderlymq_broker.replication.recovery import Recovery
from orderlymq_broker.replication.replicainstance import (
    bootstrap,
    promise_to_stick,
    sticks_ms,
)
from orderlymq_broker.settings import Address, BrokerSettings, RaftSettings
from orderlymq_broker.store.kv import Batch
from orderlymq_broker.store.raftlog import RaftLogStore
from orderlymq_raft import Membership
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
    return RaftLogStore(store, 0).initial_state()[1], Recovery.load(store).active


def test_a_founder_begins_with_all_voters_and_without_a_memory() -> None:
    """It may have lost its disk, so it does not vote before it has caught up."""
    membership, forgotten = started(SETTINGS)

    assert sorted(membership.voters) == [1, 2, 3]
    assert forgotten


def test_a_replica_that_joins_begins_without_a_memory_too() -> None:
    """One that was promoted to a voter and then lost its disk starts with the same settings."""
    membership, forgotten = started(msgspec.structs.replace(SETTINGS, join=True))

    assert (membership.members, forgotten) == (frozenset(), True)


def test_a_lone_replica_begins_without_a_memory_too() -> None:
    """Its group may have grown, and its settings may be of before; a group of one elects it all the same."""
    alone = msgspec.structs.replace(SETTINGS, peers={1: SETTINGS.peers[1]})

    assert started(alone) == (Membership(frozenset({1})), True)  # type: ignore[arg-type]  # ids


SHORT, LONG = RaftSettings(election_ms=200), RaftSettings(election_ms=1_000)


def test_a_shorter_election_time_out_leaves_the_former_promise_in_force() -> None:
    """The leader of before may count on it, until it has expired after the last start within it."""
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
    """A leader may be heard at the end of a tick."""
    assert (sticks_ms(SHORT), sticks_ms(LONG)) == (175, 975)
