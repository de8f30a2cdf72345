"""
Where the queues of a topic stand: spread over raft groups, evenly, deterministically, and without moving.

Rule: a queue that exists stays. Clients number the queues of a group from 0, so a group can only gain queues
at its end; and the text that publishes an ordered topic's list is written here and read back here.
"""

from collections.abc import Mapping, Sequence


def spread(queues: int, groups: Sequence[str], present: Mapping[str, int]) -> dict[str, int]:
    """Return how many queues each group holds when the topic has *queues* in all.

    Existing queues (*present*) stay; each further one goes to the group that holds fewest, the first
    such group of *groups*. Groups without queues are left out.
    """
    layout = {group: present.get(group, 0) for group in groups}
    for _ in range(queues - sum(layout.values())):
        emptiest = min(groups, key=lambda group: layout[group])
        layout[emptiest] += 1
    return {group: count for group, count in layout.items() if count}


def order_text(layout: Mapping[str, int]) -> str:
    """Return *layout* in the form of the name server's ORDER_TOPIC_CONFIG (`broker-a:4;broker-b:4`)."""
    return ";".join(f"{group}:{count}" for group, count in sorted(layout.items()))


def parse_order_text(text: str) -> dict[str, int]:
    """Return the layout that *text* publishes.

    Raises:
        ValueError: the text has another form.
    """
    layout: dict[str, int] = {}
    for part in filter(None, text.split(";")):
        group, separator, count = part.rpartition(":")
        if not separator or not group or not count.isdecimal():
            raise ValueError(f"{part!r} is not broker:queues")
        layout[group] = int(count)
    return layout
