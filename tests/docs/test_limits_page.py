"""docs/reference/limits.md has the limits that are in the code.

`python -m tests.docs.test_limits_page` writes the page again.
"""

from pathlib import Path
from typing import Final

from orderlymq_backup.manifest import BACKUP_FILES_MAX
from orderlymq_broker.core.bodylimits import SUBSCRIPTIONS_MAX
from orderlymq_broker.core.capacity import UNCOMMITTED_COUNT_MAX
from orderlymq_broker.core.clientsessions import SAID_MAX, SAID_OF_CONNECTION_MAX, SAID_SMALL
from orderlymq_broker.core.entrybuilder import NAMES_MAX
from orderlymq_broker.core.listings import WAITING_MAX as LISTS_MAX
from orderlymq_broker.core.pullpositions import POSITIONS_MAX
from orderlymq_broker.processors.admin.accounts import (
    ACCESS_KEY_LENGTH_MAX,
    ACCOUNTS_MAX,
    RESOURCES_MAX,
)
from orderlymq_broker.processors.fetch.pull import HELD_BYTES_MAX, HELD_MAX
from orderlymq_broker.processors.groups.locks import LOCKS_MAX
from orderlymq_broker.processors.groups.offsets import OFFSETS_MAX
from orderlymq_broker.processors.lanes.planner import (
    IN_HAND_MAX,
    LANE_OFFSETS_MAX,
    LANES_MAX,
    LANES_OF_GROUP_MAX,
    OWED_MAX,
)
from orderlymq_broker.processors.observe.status import SERIES_MAX
from orderlymq_broker.processors.topics.expansionrequests import SWITCH_OFFSETS_MAX
from orderlymq_broker.replication.transport.links import SLOW_BACKLOG
from orderlymq_broker.server.router import WAITING_BYTES_MAX, WAITING_MAX
from orderlymq_broker.settings import RaftSettings, StorageSettings
from orderlymq_broker.state.groups.members import MEMBER_SMALL, MEMBERS_SIZE_MAX
from orderlymq_broker.state.groups.parkedkeys import KEY_BYTES_MAX, PARKED_KEYS_MAX
from orderlymq_broker.state.send.duplicates import UNIQUE_KEY_LENGTH_MAX
from orderlymq_broker.state.sharedroom import FACTOR
from orderlymq_broker.state.transactions.halves import OPEN_MAX, OPEN_OF_GROUP_MAX
from orderlymq_broker.store.snapshot import FILES_MAX
from orderlymq_operator.resources.cluster.status import GROUPS_MAX
from orderlymq_operator.resources.topic import QUEUES_MAX
from orderlymq_protocol.body.clients import LOCK_QUEUES_MAX
from orderlymq_protocol.brokerkeys import BROKER_KEYS
from orderlymq_protocol.frame.binaryheader import FIELDS_MAX
from orderlymq_protocol.frame.codec import FRAME_SIZE_MAX, HEADER_SIZE_MAX
from orderlymq_protocol.message.batch import BATCH_COUNT_MAX
from orderlymq_protocol.message.record import PROPERTIES_BYTES_MAX
from orderlymq_protocol.names import DLQ_PREFIX, GROUP_LENGTH_MAX, RETRY_PREFIX, TOPIC_LENGTH_MAX
from orderlymq_runtime.remoting.server import CONNECTIONS_MAX
from orderlymq_runtime.sockets.inputbudget import (
    BROKER_BYTES_MAX,
    NAME_SERVER_BYTES_MAX,
    STRANGERS_BYTES_MAX,
)

PAGE: Final = Path(__file__).parents[2] / "docs" / "reference" / "limits.md"
HEAD: Final = """\
# Limits

What is bounded, and what happens at the bound. This page is generated: `python -m tests.docs.test_limits_page`. [Settings](settings.md) has the
settings that are named here.
"""

_BODY: Final = BROKER_KEYS["maxMessageSize"]
_WINDOW: Final = StorageSettings()


def _bytes(count: int) -> str:
    for unit, size in (("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)):
        if count >= size and count % size == 0:
            return f"{count // size:,} {unit}"
    return f"{count:,} bytes"


#: The limits: their subject, amount and setting, and their effect.
TABLES: Final[dict[str, list[tuple[str, str, str, str]]]] = {
    "Messages": [
        (
            "body of a message",
            _bytes(int(_BODY.default)),
            f"`maxMessageSize`, {_bytes(_BODY.high)} at most",
            "the send is refused with code 13",
        ),
        (
            "properties of a message",
            _bytes(PROPERTIES_BYTES_MAX),
            "",
            "the send is refused with code 13",
        ),
        ("messages in a batch", f"{BATCH_COUNT_MAX:,}", "", "the batch is refused with code 13"),
        ("name of a topic", f"{TOPIC_LENGTH_MAX} characters", "", "the request is refused"),
        (
            "name of a consumer group",
            f"{GROUP_LENGTH_MAX} characters",
            "",
            "the request is refused",
        ),
        (
            "name of a consumer group with retries and dead letters",
            f"{TOPIC_LENGTH_MAX - len(RETRY_PREFIX)} characters",
            "",
            "a message that is handed back is refused with code 1, or gets no answer where the client is Go's; its consumer keeps it and tries it again",
        ),
        (
            "name of a consumer group by key",
            f"{TOPIC_LENGTH_MAX - len(DLQ_PREFIX)} characters",
            "",
            "heartbeat and group are refused with code 1",
        ),
        (
            "unique key that the duplicate window knows",
            f"{UNIQUE_KEY_LENGTH_MAX} characters",
            "",
            "a repeat is a new send",
        ),
        (
            "duplicate window of a broker group",
            f"{_WINDOW.dedup_window_count:,} sends, {_WINDOW.dedup_window_ms // 60_000} minutes",
            "`dedupWindowCount`, `dedupWindowTime`",
            "an older repeat is a new send",
        ),
        (
            "frame of a request, its header, the fields of that",
            f"{_bytes(FRAME_SIZE_MAX)}, {_bytes(HEADER_SIZE_MAX)}, {FIELDS_MAX}",
            "",
            "the connection is closed",
        ),
    ],
    "Cluster": [
        ("broker groups of a Cluster", f"{GROUPS_MAX}", "`spec.groups`", "the manifest is refused"),
        (
            "replicas of a broker group",
            "1, 3 or 5",
            "`spec.replicasPerGroup`",
            "the manifest is refused",
        ),
        (
            "queues of a Topic, over all groups",
            f"{QUEUES_MAX:,}",
            "`spec.queues`",
            "the manifest is refused",
        ),
        (
            "files of a broker group's store that another replica or a backup gets",
            f"{FILES_MAX:,}",
            "",
            "the copy is refused",
        ),
        (
            "files of a backup, over all broker groups",
            f"{BACKUP_FILES_MAX:,}",
            "",
            "the backup is refused before anything is read",
        ),
        (
            "topics of a broker group, retry topics included",
            f"{NAMES_MAX:,}",
            "",
            "the request is refused with code 1",
        ),
        (
            "consumer groups of a broker group",
            f"{NAMES_MAX:,}",
            "",
            "the request is refused with code 1",
        ),
        (
            "accounts; rights of an account; its name",
            f"{ACCOUNTS_MAX:,}; {RESOURCES_MAX:,}; {ACCESS_KEY_LENGTH_MAX} characters",
            "",
            "the account is refused",
        ),
        ("series of one metric with labels", f"{SERIES_MAX:,}", "", "the greatest are shown"),
    ],
    "Consumers": [
        (
            "topics and groups in one heartbeat",
            f"{SUBSCRIPTIONS_MAX:,}",
            "",
            "the heartbeat is refused",
        ),
        ("queues in one request for locks", f"{LOCK_QUEUES_MAX:,}", "", "the request is refused"),
        (
            "pulls that wait at a broker; their texts and filters",
            f"{HELD_MAX:,}; {_bytes(HELD_BYTES_MAX)}",
            "",
            "the connection with most of them gives some up",
        ),
        (
            "queues of groups whose pulls are shown as in flight",
            f"{POSITIONS_MAX:,}",
            "",
            "nothing is shown in flight of further ones",
        ),
        (
            "heartbeats of the clients behind one connection",
            _bytes(SAID_OF_CONNECTION_MAX),
            "",
            "the heartbeat is refused with code 2",
        ),
        (
            f"heartbeats of all clients; those up to {_bytes(SAID_SMALL)} have as much again",
            f"{_bytes(SAID_MAX)}, of one account or address {FACTOR} times what is left",
            "",
            "the heartbeat is refused with code 2",
        ),
        (
            f"memory of all members; those up to {_bytes(MEMBER_SMALL)} have as much again",
            f"{_bytes(MEMBERS_SIZE_MAX)}, of one account or address {FACTOR} times what is left",
            "",
            "the heartbeat is refused with code 2",
        ),
        (
            "offsets of all groups, in a broker group",
            f"{OFFSETS_MAX:,}",
            "",
            "a group's first offset of a queue is refused with code 1, and so is an expansion that would give more",
        ),
        (
            "offsets that one expansion of a topic gives to its readers, in a broker group",
            f"{SWITCH_OFFSETS_MAX:,}",
            "",
            "it is refused with code 1; a topic grows by fewer queues at a time",
        ),
        (
            "offsets of all groups with which lanes of further queues begin, in a broker group",
            f"{LANE_OFFSETS_MAX:,}",
            "",
            "no further queue begins; later it does as if the group came then",
        ),
        (
            "queue locks of all groups, in a broker group, free ones included",
            f"{LOCKS_MAX:,}",
            "",
            "a group's first lock of a queue is refused with code 1",
        ),
        (
            "parked keys of a group, in a broker group",
            f"{PARKED_KEYS_MAX:,}",
            "",
            "the next dead letter stops its queue",
        ),
        ("a key that can be parked", _bytes(KEY_BYTES_MAX), "", "its dead letter stops the queue"),
        (
            "lanes of a group, in a broker group",
            f"{LANES_OF_GROUP_MAX:,}",
            "",
            "no further key is handed out until one is done",
        ),
        (
            "lanes of all groups, in a broker group",
            f"{LANES_MAX:,}",
            "",
            "a group that has its share of these gets no further key",
        ),
        (
            "lanes of a topic in the hands of a member, in a broker group",
            f"{IN_HAND_MAX:,}",
            "",
            "its fetches wait",
        ),
        (
            "messages of a queue that lanes of a group owe",
            f"{OWED_MAX:,}",
            "",
            "no further key of the queue is handed out until some are complete",
        ),
    ],
    "Producers": [
        (
            "name of a producer group with transactions",
            f"{GROUP_LENGTH_MAX} characters",
            "",
            "a half message is refused with code 13",
        ),
        (
            "transactions that have not ended",
            f"{OPEN_MAX:,}, of one topic {FACTOR} times what is left, of one producer group there {OPEN_OF_GROUP_MAX:,}",
            "",
            "a half message is refused with code 2",
        ),
        (
            "what is proposed and not committed",
            _bytes(RaftSettings().uncommitted_size_max),
            "",
            "sends are refused with code 2",
        ),
        (
            "changes that are proposed and not committed",
            f"{UNCOMMITTED_COUNT_MAX:,}, {_bytes(2 * RaftSettings().uncommitted_size_max)}",
            "",
            "locks, offsets, new members, fetches and reports of lanes are refused with code 2",
        ),
        (
            "messages of lanes whose hand-out is proposed and not committed",
            _bytes(RaftSettings().uncommitted_size_max),
            "",
            "fetches of lanes are refused with code 2",
        ),
        (
            "repeats that wait for a send or for the end of a transaction, a batch counted for each message, and these changes",
            f"{UNCOMMITTED_COUNT_MAX:,}",
            "",
            "a further repeat is refused with code 2",
        ),
        (
            "requests that wait for a topic or group to be made",
            _bytes(RaftSettings().uncommitted_size_max),
            "",
            "a further one is refused with code 2",
        ),
    ],
    "Network": [
        (
            "connections of a broker",
            f"{CONNECTIONS_MAX:,}, 5 KiB each, or the open files that the system allows",
            "",
            "some connection is closed",
        ),
        (
            "requests that wait for a leader, or at it for those before them",
            f"{WAITING_MAX:,}, {_bytes(WAITING_BYTES_MAX)}",
            "",
            "the connection with most of them is closed",
        ),
        (
            "lists of all topics, groups, offsets, locks, clients or accounts that wait to be written",
            f"{LISTS_MAX}",
            "",
            "the newest of the account or address with most of them is refused with code 2",
        ),
        (
            "answers that wait to be sent to the replica that has the clients",
            _bytes(SLOW_BACKLOG),
            "",
            "the requests of its clients wait",
        ),
        (
            "input of clients that a broker, a name server holds",
            f"{_bytes(BROKER_BYTES_MAX)}, {_bytes(NAME_SERVER_BYTES_MAX)}",
            "",
            "the oldest holder is closed",
        ),
        (
            "input of peers that were never served",
            _bytes(STRANGERS_BYTES_MAX),
            "",
            "the oldest holder is closed",
        ),
    ],
}


def render() -> str:
    """Return the page."""
    parts = [HEAD]
    for title, rows in TABLES.items():
        lines = "\n".join(f"| {' | '.join(row)} |" for row in rows)
        parts.append(
            f"\n## {title}\n\n| what | at most | setting | what happens there |\n| --- | --- | --- | --- |\n{lines}\n"
        )
    return "".join(parts)


def test_the_page_of_limits_says_what_the_code_has() -> None:
    """A changed limit changes the page."""
    assert PAGE.read_text() == render(), "run python -m tests.docs.test_limits_page"


if __name__ == "__main__":
    PAGE.write_text(render())
