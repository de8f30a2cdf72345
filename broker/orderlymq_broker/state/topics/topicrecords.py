"""What is stored of a topic; ``topics.py`` reads and writes it."""

import msgspec

from orderlymq_broker.state.records import TopicSet


class TopicRow(msgspec.Struct, frozen=True, array_like=True):
    """A topic as its row holds it."""

    id: int
    config: TopicSet
