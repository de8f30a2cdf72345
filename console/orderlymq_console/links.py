"""Addresses of pages; names of topics, groups and keys are escaped, so they may hold any character."""

from typing import Final
from urllib.parse import quote, urlencode

#: The address of the page of delayed messages and transactions.
WAITING: Final = "/waiting"


def topic_link(topic: str) -> str:
    """Return the address of a topic's page."""
    return f"/topics/{quote(topic, safe='')}"


def group_link(group: str) -> str:
    """Return the address of a consumer group's page."""
    return f"/groups/{quote(group, safe='')}"


def key_link(topic: str, key: str) -> str:
    """Return the address of a key's page."""
    return f"/key?{urlencode({'topic': topic, 'key': key})}"


def messages_link(topic: str, **parameters: object) -> str:
    """Return the address of a topic's messages; *parameters* may give a queue, an offset and a key."""
    named = {name: value for name, value in parameters.items() if value not in (None, "")}
    return f"{topic_link(topic)}/messages" + (f"?{urlencode(named)}" if named else "")


def queue_link(topic: str, broker_group: str, queue: int, offset: int | None) -> str:
    """Return the address of a queue's messages from an offset on."""
    return messages_link(topic, queue=f"{broker_group}:{queue}", offset=offset)


def release_link(group: str, topic: str, key: str, how: str) -> str:
    """Return the address of the preview of a release."""
    return f"{group_link(group)}/release?{urlencode({'topic': topic, 'key': key, 'how': how})}"


def redrive_link(group: str, topic: str, key: str) -> str:
    """Return the address of the preview of a redrive."""
    return f"{group_link(group)}/redrive?{urlencode({'topic': topic, 'key': key})}"


def skip_link(group: str, topic: str, broker_group: str, queue: int, offset: int) -> str:
    """Return the address of the preview of a reset that skips the message at an offset."""
    named = {
        "topic": topic,
        "queue": f"{broker_group}:{queue}",
        "to": "offset",
        "offset": offset + 1,
    }
    return f"{group_link(group)}/reset?{urlencode(named)}"


def redrive_all_link(group: str, topic: str) -> str:
    """Return the address of the preview of a redrive of all keys of a topic."""
    return f"{group_link(group)}/redrive?{urlencode({'topic': topic, 'all': 1})}"


def message_link(topic: str, broker_group: str, queue: int, offset: int) -> str:
    """Return the address of a message's page."""
    named = {"topic": topic, "queue": f"{broker_group}:{queue}", "offset": offset}
    return f"/message?{urlencode(named)}"


def pipeline_link(pipeline: str) -> str:
    """Return the address of a pipeline's page."""
    return f"/pipelines/{quote(pipeline, safe='')}"


def member_link(group: str, client_id: str) -> str:
    """Return the address of the page of a consumer group's member."""
    return f"{group_link(group)}/member?{urlencode({'client': client_id})}"


def dead_letters_link(group: str) -> str:
    """Return the address of the page that leads through the dead letters of a consumer group."""
    return f"/dead-letters/{quote(group, safe='')}"
