"""Fields of ours beside those of RocketMQ's headers, by their names on the wire; who does not know one ignores it."""

from typing import Final

# Of pulls, commits and locks: who asks, and under which epoch of the queue's lock.
EXT_CLIENT_ID: Final = "omqClientId"
EXT_EPOCH: Final = "omqEpoch"
# Of a pull: its reader reads whole ranges, and may then get more than RocketMQ's 32 messages in one answer.
EXT_BULK: Final = "omqBulk"
# Of a send: how many queues its sender chose from.
EXT_QUEUE_TOTAL: Final = "omqQueueTotal"
# Of a heartbeat: a broker of this machine sees when the process with this id has ended.
EXT_PROCESS: Final = "omqProcessId"
# Of what an operator changes: its token (``operatortoken``).
EXT_TOKEN: Final = "operatorToken"  # noqa: S105 - the name of a field
# Of a topic that an operator makes: leave it as it is where it is there by now.
EXT_NEW: Final = "omqNew"
# Of an account: how long its former secret stays valid, and its quota.
EXT_OVERLAP: Final = "omqSecretOverlapSeconds"
EXT_REQUESTS: Final = "omqRequestsPerSecond"
EXT_BYTES: Final = "omqBytesPerSecond"
EXT_CONNECTIONS: Final = "omqConnections"
# Of a queue expansion: the longest fence, and the longest time in which clients learn the new list.
EXPANSION_MS_MAX: Final = 60 * 60 * 1_000
# Of a change of a consumer group: the members of the body that are meant, comma between them; the others stay as they are.
EXT_MEMBERS: Final = "omqMembers"
