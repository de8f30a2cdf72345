"""
The ranges of numbers in records: those of the fields of RocketMQ's protocol from which the numbers come.

Decoding refuses a number outside of its range, and any value that is not a number. So a record never contains a
number that a key or a row of the store cannot hold. The leader notices such a number before the record is in the log.
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
#: How long a grant is valid, in ms.
Lease: TypeAlias = Annotated[int, Meta(ge=1, le=2**31 - 1)]
#: Queues of an expanding topic: each is a row of each group that reads the topic.
QueueCount: TypeAlias = Annotated[int, Meta(ge=0, le=16_384)]
#: Queues of a topic in all raft groups.
QueueTotal: TypeAlias = Annotated[int, Meta(ge=1, le=16_384)]

#: Replaces an operator's token if the broker itself has written the record, so that there is nothing to compare.
NO_TOKEN: Final = -1
