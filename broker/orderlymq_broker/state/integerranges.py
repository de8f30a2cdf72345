"""
The ranges of numbers in records: those of the fields of RocketMQ's protocol that they come from.

Decoding refuses a number outside of them, and anything that is no number. So a record holds no number that a
key or a row of the store cannot hold, and the leader finds that out before the record is in the log.
"""

from typing import Annotated, Final, TypeAlias

from msgspec import Meta

Long: TypeAlias = Annotated[int, Meta(ge=-(2**63), le=2**63 - 1)]

#: A Java int that is part of keys, which have no sign: a queue id, a number of queues, a size.
Natural: TypeAlias = Annotated[int, Meta(ge=0, le=2**31 - 1)]
#: A Java long that is part of keys: an offset or a time.
Position: TypeAlias = Annotated[int, Meta(ge=0, le=2**63 - 1)]
#: A Position, or -1 for none or any.
Maybe: TypeAlias = Annotated[int, Meta(ge=-1, le=2**63 - 1)]
#: How long a grant is good, in ms.
Lease: TypeAlias = Annotated[int, Meta(ge=1, le=2**31 - 1)]
#: Queues of a topic that grows: each is a row of each group that reads the topic.
QueueCount: TypeAlias = Annotated[int, Meta(ge=0, le=16_384)]
#: Queues of a topic over all raft groups.
QueueTotal: TypeAlias = Annotated[int, Meta(ge=1, le=16_384)]

#: In place of an operator's token: the broker itself has written the record, so there is nothing to compare.
NO_TOKEN: Final = -1
