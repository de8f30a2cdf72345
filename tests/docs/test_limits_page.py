"""
docs/reference/limits.md has the limits that are in the code.

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
HEAD: Final = f"""\
# Limits

This page lists the limits, and what happens when one is reached. [Settings](settings.md) describes the settings that are named here.
*Shared* means that several owners (accounts, addresses or topics) share the amount. After each request an owner has at most
{FACTOR} times the room that is still free. So one owner alone gets at most three quarters of the amount, and two get at most three sevenths each.

This page is generated: `python -m tests.docs.test_limits_page`.
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
            "name of a consumer group (with retries or dead letters less: see the next two rows)",
            f"{GROUP_LENGTH_MAX} characters",
            "",
            f"the request is refused; choose at most {TOPIC_LENGTH_MAX - len(RETRY_PREFIX)} characters, because `{RETRY_PREFIX}` or `{DLQ_PREFIX}` and the name together are the name of a topic",
        ),
        (
            "name of a consumer group with retries and dead letters",
            f"{TOPIC_LENGTH_MAX - len(RETRY_PREFIX)} characters",
            "",
            "a message that is sent back for a retry is refused with code 1, or gets no answer if the client is Go's; the consumer keeps it and tries it again",
        ),
        (
            "name of a consumer group by key",
            f"{TOPIC_LENGTH_MAX - len(DLQ_PREFIX)} characters",
            "",
            "heartbeats and the creation of the group are refused with code 1",
        ),
        (
            "unique key that the duplicate window recognises",
            f"{UNIQUE_KEY_LENGTH_MAX} characters",
            "",
            "a repeat counts as a new send",
        ),
        (
            "duplicate window of a broker group",
            f"{_WINDOW.dedup_window_count:,} sends, {_WINDOW.dedup_window_ms // 60_000} minutes",
            "`dedupWindowCount`, `dedupWindowTime`",
            "an older repeat counts as a new send",
        ),
        (
            "frame of a request",
            _bytes(FRAME_SIZE_MAX),
            "",
            "the connection is closed",
        ),
        ("header of a frame", _bytes(HEADER_SIZE_MAX), "", "the connection is closed"),
        ("fields of the header of a frame", f"{FIELDS_MAX}", "", "the connection is closed"),
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
            "queues of a Topic, over all broker groups",
            f"{QUEUES_MAX:,}",
            "`spec.queues`",
            "the manifest is refused",
        ),
        (
            "files of a broker group's store that are copied to another replica or a backup",
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
            "accounts",
            f"{ACCOUNTS_MAX:,}",
            "",
            "the account is refused",
        ),
        ("permissions of an account", f"{RESOURCES_MAX:,}", "", "the account is refused"),
        (
            "name of an account",
            f"{ACCESS_KEY_LENGTH_MAX} characters",
            "",
            "the account is refused",
        ),
        (
            "series of one metric with labels",
            f"{SERIES_MAX:,}",
            "",
            "only the series with the greatest values are shown",
        ),
    ],
    "Consumers": [
        (
            "topics and consumer groups in one heartbeat",
            f"{SUBSCRIPTIONS_MAX:,}",
            "",
            "the heartbeat is refused",
        ),
        ("queues in one lock request", f"{LOCK_QUEUES_MAX:,}", "", "the request is refused"),
        (
            "pulls that wait at a broker",
            f"{HELD_MAX:,}",
            "",
            "the oldest pulls of the connection with the most of them are answered early",
        ),
        (
            "size of the texts and filters of pulls that wait at a broker",
            _bytes(HELD_BYTES_MAX),
            "",
            "the oldest pulls of the connection with the most of them are answered early",
        ),
        (
            "queues of consumer groups for which messages in flight are shown",
            f"{POSITIONS_MAX:,}",
            "",
            "no messages in flight are shown for further queues",
        ),
        (
            "size of the heartbeats of all clients on one connection",
            _bytes(SAID_OF_CONNECTION_MAX),
            "",
            "the heartbeat is refused with code 2",
        ),
        (
            "size of the heartbeats of all clients",
            f"{_bytes(2 * SAID_MAX)}, shared by accounts and addresses",
            "",
            "the heartbeat is refused with code 2",
        ),
        (
            f"size of the heartbeats of all clients that are larger than {_bytes(SAID_SMALL)}",
            f"{_bytes(SAID_MAX)}, shared by accounts and addresses",
            "",
            "the heartbeat is refused with code 2",
        ),
        (
            "memory of all members",
            f"{_bytes(2 * MEMBERS_SIZE_MAX)}, shared by accounts and addresses",
            "",
            "the heartbeat is refused with code 2",
        ),
        (
            f"memory of the members that are larger than {_bytes(MEMBER_SMALL)}",
            f"{_bytes(MEMBERS_SIZE_MAX)}, shared by accounts and addresses",
            "",
            "the heartbeat is refused with code 2",
        ),
        (
            "offsets of all consumer groups, in a broker group",
            f"{OFFSETS_MAX:,}",
            "",
            "a consumer group's first offset of a queue is refused with code 1, and so is an expansion of a topic that would exceed the limit",
        ),
        (
            "offsets that one expansion of a topic adds for its consumer groups, in a broker group",
            f"{SWITCH_OFFSETS_MAX:,}",
            "",
            "the expansion is refused with code 1; expand the topic by fewer queues at a time",
        ),
        (
            "offsets of all consumer groups, in a broker group, up to which a group by key begins new queues",
            f"{LANE_OFFSETS_MAX:,}",
            "",
            "the group begins no further queue; it begins later, as if it were new then",
        ),
        (
            "queue locks of all consumer groups, in a broker group, including free ones",
            f"{LOCKS_MAX:,}",
            "",
            "a consumer group's first lock of a queue is refused with code 1",
        ),
        (
            "parked keys of a consumer group, in a broker group",
            f"{PARKED_KEYS_MAX:,}",
            "",
            "the next dead letter stops its queue",
        ),
        (
            "size of a key that can be parked",
            _bytes(KEY_BYTES_MAX),
            "",
            "a dead letter of a larger key stops its queue",
        ),
        (
            "lanes of a consumer group, in a broker group",
            f"{LANES_OF_GROUP_MAX:,}",
            "",
            "no further key is handed out until a lane is done",
        ),
        (
            "lanes of all consumer groups, in a broker group",
            f"{LANES_MAX:,}",
            "",
            "a group that has its share of the lanes gets no further key",
        ),
        (
            "lanes of a topic that a member works on, in a broker group",
            f"{IN_HAND_MAX:,}",
            "",
            "the fetches of the member wait",
        ),
        (
            "messages of a queue that wait behind busy lanes of a consumer group",
            f"{OWED_MAX:,}",
            "",
            "no further key of the queue is handed out until some messages are complete",
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
            f"{OPEN_MAX:,}, shared by topics",
            "",
            "a half message is refused with code 2",
        ),
        (
            "transactions of a producer group in a topic that have not ended",
            f"{OPEN_OF_GROUP_MAX:,}",
            "",
            "a half message is refused with code 2",
        ),
        (
            "size of proposals that are not committed yet",
            _bytes(RaftSettings().uncommitted_size_max),
            "",
            "sends are refused with code 2",
        ),
        (
            "proposed changes that are not committed yet",
            f"{UNCOMMITTED_COUNT_MAX:,}",
            "",
            "locks, offsets, new members, and fetches and reports of lanes are refused with code 2",
        ),
        (
            "size of proposed changes that are not committed yet",
            _bytes(2 * RaftSettings().uncommitted_size_max),
            "",
            "locks, offsets, new members, and fetches and reports of lanes are refused with code 2",
        ),
        (
            "size of the messages of lanes whose hand-out is proposed but not committed yet",
            _bytes(RaftSettings().uncommitted_size_max),
            "",
            "fetches of lanes are refused with code 2",
        ),
        (
            "repeats that wait for the first send or for the end of a transaction (a batch counts once per message), together with the proposed changes that are not committed yet",
            f"{UNCOMMITTED_COUNT_MAX:,}",
            "",
            "a further repeat is refused with code 2",
        ),
        (
            "size of requests that wait for the creation of a topic or group",
            _bytes(RaftSettings().uncommitted_size_max),
            "",
            "a further request is refused with code 2",
        ),
    ],
    "Network": [
        (
            "connections of a broker",
            f"{CONNECTIONS_MAX:,} (5 KiB of memory each), or fewer if the system allows fewer open files",
            "",
            "the oldest connection that was never served is closed; if there is none, the new one",
        ),
        (
            "requests that wait for a leader, or at the leader for earlier requests",
            f"{WAITING_MAX:,}",
            "",
            "the connection with the most of them is closed",
        ),
        (
            "size of requests that wait for a leader, or at the leader for earlier requests",
            _bytes(WAITING_BYTES_MAX),
            "",
            "the connection with the most of their bytes is closed",
        ),
        (
            "requested lists of all topics, groups, offsets, locks, clients or accounts that are not written yet",
            f"{LISTS_MAX}",
            "",
            "the newest list of the account or address with the most lists is refused with code 2",
        ),
        (
            "answers that wait to be sent to the replica to which the clients are connected",
            _bytes(SLOW_BACKLOG),
            "",
            "the requests of these clients wait",
        ),
        (
            "unfinished input that a broker holds",
            _bytes(BROKER_BYTES_MAX),
            "",
            "the oldest connection with unfinished input is closed",
        ),
        (
            "unfinished input that a name server holds",
            _bytes(NAME_SERVER_BYTES_MAX),
            "",
            "the oldest connection with unfinished input is closed",
        ),
        (
            "unfinished input from peers that were never served",
            _bytes(STRANGERS_BYTES_MAX),
            "",
            "the oldest connection with unfinished input is closed",
        ),
    ],
}


def render() -> str:
    """Return the page."""
    parts = [HEAD]
    for title, rows in TABLES.items():
        lines = "\n".join(f"| {' | '.join(row)} |" for row in rows)
        parts.append(
            f"\n## {title}\n\n| limit of | at most | setting | at the limit |\n| --- | --- | --- | --- |\n{lines}\n"
        )
    return "".join(parts)


def test_the_page_of_limits_says_what_the_code_has() -> None:
    """A changed limit changes the page."""
    assert PAGE.read_text() == render(), "run python -m tests.docs.test_limits_page"


if __name__ == "__main__":
    PAGE.write_text(render())
