"""
Namespaces: names of topics and groups as RocketMQ's clients wrap them, `INSTANCE%topic`.

Rule: a wrapped name is not wrapped again, a retry or dead-letter prefix stays in front, and system names stay as they
are (org.apache.rocketmq.common.protocol.NamespaceUtil). Brokers know whole names only. `ClientSettings.namespace`
makes a producer or consumer wrap and unwrap names by itself.
"""

from orderlymq_protocol.names import (
    DLQ_PREFIX,
    RETRY_PREFIX,
    is_system_group,
    is_system_topic,
)

_SEPARATOR = "%"


def with_namespace(namespace: str, name: str) -> str:
    """Return the name of a topic or group inside a namespace.

    >>> with_namespace("shop", "%RETRY%billing")
    '%RETRY%shop%billing'
    """
    prefix, bare = _cut(name)
    if not namespace or not bare or is_system_topic(name) or is_system_group(name):
        return name
    if bare.startswith(namespace + _SEPARATOR):
        return name

    return f"{prefix}{namespace}{_SEPARATOR}{bare}"


def without_namespace(name: str, namespace: str | None = None) -> str:
    """Return a name without *namespace*, or without any namespace if that is None.

    >>> without_namespace("%RETRY%shop%billing")
    '%RETRY%billing'
    """
    prefix, bare = _cut(name)
    if is_system_topic(name) or is_system_group(name):
        return name
    found, separator, rest = bare.partition(_SEPARATOR)
    if not separator or not found or (namespace is not None and found != namespace):
        return name

    return prefix + rest


def _cut(name: str) -> tuple[str, str]:
    for prefix in (RETRY_PREFIX, DLQ_PREFIX):
        if name.startswith(prefix):
            return prefix, name.removeprefix(prefix)

    return "", name
