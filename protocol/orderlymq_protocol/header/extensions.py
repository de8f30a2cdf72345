"""Our own fields in addition to those of RocketMQ's headers, by their names on the wire; a process that does not know one ignores it."""

from typing import Final

# In pulls, commits and locks: the client that asks, and the epoch under which it holds the queue's lock.
EXT_CLIENT_ID: Final = "omqClientId"
EXT_EPOCH: Final = "omqEpoch"
# In a pull: its reader reads whole ranges, and may then get more than RocketMQ's 32 messages in one answer.
EXT_BULK: Final = "omqBulk"
# In a send: the number of queues from which the sender chose.
EXT_QUEUE_TOTAL: Final = "omqQueueTotal"
# In a heartbeat: with this id, a broker on the same machine sees when the process has ended.
EXT_PROCESS: Final = "omqProcessId"
# In a change by an operator: its token (``operatortoken``).
EXT_TOKEN: Final = "operatorToken"  # noqa: S105 - the name of a field
# In the creation of a topic by an operator: leave the topic unchanged if it exists by now.
EXT_NEW: Final = "omqNew"
# In a change of an account: how long its former secret stays valid, and its quota.
EXT_OVERLAP: Final = "omqSecretOverlapSeconds"
EXT_REQUESTS: Final = "omqRequestsPerSecond"
EXT_BYTES: Final = "omqBytesPerSecond"
EXT_CONNECTIONS: Final = "omqConnections"
# In a queue expansion: the longest fence, and the longest time in which clients learn the new list.
EXPANSION_MS_MAX: Final = 60 * 60 * 1_000
# In a change of a consumer group: the members of the body to change, separated by commas; the others stay unchanged.
EXT_MEMBERS: Final = "omqMembers"
