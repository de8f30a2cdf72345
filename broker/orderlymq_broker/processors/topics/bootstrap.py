"""
The first content of a fresh broker: RocketMQ's system topics and groups.

The rule: the first leader creates them with ordinary records, so all replicas have them with the same
ids. A later leader adds missing topics and does not change existing ones.
"""

from typing import Final

from orderlymq_broker.settings import BrokerSettings
from orderlymq_broker.state.broker import BrokerState
from orderlymq_broker.state.records import GroupSet, Record, TopicSet
from orderlymq_protocol import names
from orderlymq_protocol.body.config import PERM_INHERIT, PERM_READ, PERM_WRITE

_READ_WRITE: Final = PERM_READ | PERM_WRITE
_INHERITED: Final = PERM_READ | PERM_WRITE | PERM_INHERIT

_GROUPS: Final = (
    names.TOOLS_GROUP,
    "FILTERSRV_CONSUMER",
    "SELF_TEST_C_GROUP",
    "CID_ONS-HTTP-PROXY",
    "CID_ONSAPI_PULL",
    "CID_ONSAPI_PERMISSION",
    "CID_ONSAPI_OWNER",
    "CID_RMQ_SYS_TRANS",
)


def bootstrap_records(settings: BrokerSettings, state: BrokerState) -> list[Record]:
    """Return the records that create the missing system topics and groups."""
    # An operator creates the template topic once every declared topic exists. Otherwise, a send of a producer that
    # already runs would create a declared Ordered topic as Normal, and it would stay Normal. If an administrator
    # switched auto-creation on, it is not left to the operator.
    template = settings.auto_create_topic and (
        not settings.has_operator or "autoCreateTopicEnable" in state.overrides.values
    )
    levels = len(settings.timers.delay_levels.split())
    topics = [
        (names.SELF_TEST_TOPIC, 1, _READ_WRITE),
        *([(names.AUTO_CREATE_TOPIC, 8, _INHERITED)] if template else []),
        (names.BENCHMARK_TOPIC, 1024, _READ_WRITE),
        (settings.cluster, 16, _INHERITED),
        (settings.group, 1, _READ_WRITE),
        (names.OFFSET_MOVED_TOPIC, 1, _READ_WRITE),
        (names.SCHEDULE_TOPIC, levels, _READ_WRITE),
        (names.TIMER_TOPIC, 1, _READ_WRITE),
        (names.reply_topic(settings.cluster), 1, _READ_WRITE),
        (names.TRANS_HALF_TOPIC, 1, _READ_WRITE),
        (names.TRANS_OP_HALF_TOPIC, 1, _READ_WRITE),
        (names.TRANS_CHECK_MAX_TIME_TOPIC, 1, _READ_WRITE),
        *([(names.TRACE_TOPIC, 1, _READ_WRITE)] if settings.trace_topic_enable else []),
    ]
    records: list[Record] = [
        TopicSet(name, queues, queues, perm=perm, only_if_absent=True)
        for name, queues, perm in topics
        if state.topics.get(name) is None
    ]
    records += [
        GroupSet(name, only_if_absent=True) for name in _GROUPS if state.groups.get(name) is None
    ]

    return records
