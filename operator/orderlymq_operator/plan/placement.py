"""
Where the queues of a topic stand: spread over raft groups evenly and deterministically, without moving any.

Rule: an existing queue stays. Clients number the queues of a raft group from 0, so a raft group can only gain queues
at its end. The text that publishes an ordered topic's list is written and parsed here.
"""

from collections.abc import Mapping, Sequence


def spread(queues: int, groups: Sequence[str], present: Mapping[str, int]) -> dict[str, int]:
    """Return how many queues each raft group holds if the topic has *queues* in all.

    Existing queues (*present*) stay. Each further queue goes to the raft group with the fewest, the first such one in
    *groups*. Raft groups without queues are left out.
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
        ValueError: the text is not in that form.
    """
    layout: dict[str, int] = {}
    for part in filter(None, text.split(";")):
        group, separator, count = part.rpartition(":")
        if not separator or not group or not count.isdecimal():
            raise ValueError(f"{part!r} is not broker:queues")
        layout[group] = int(count)
    return layout
