"""The lanes of a group by key, as `orderlymq group show` prints them: data, and lines of text. Pure."""

from typing import Any, Final

from orderlymq.cli.session import one_line
from orderlymq_protocol.body.lanes import LaneShown, LaneTable
from orderlymq_protocol.plurals import counted

# More lanes than this would push the table of queues off the screen.
SHOWN_MAX: Final = 10
_COUNTED: Final = (
    ("inHand", "in_hand"),
    ("ready", "ready"),
    ("parked", "parked"),
    ("held", "held"),
    ("deadLettering", "dead_lettering"),
)
TROUBLED: Final = ("held", "deadLettering", "parked")
# The order of the lines: lanes that stop a queue and wait for a member, lanes in trouble, lanes whose listener may
# never return.
_NAMED: Final = ("ready", *TROUBLED, "inHand")
_LONG_S: Final = 60


def lane_data(table: LaneTable, now_ms: int) -> dict[str, Any]:
    """Return counts over all queues, the reasons why queues hand out no new lanes, and each lane that a broker names."""
    return {
        **{name: sum(getattr(row, field) for row in table.queues) for name, field in _COUNTED},
        "owed": sum(row.owed for row in table.queues),
        "limited": [
            {
                "topic": row.topic,
                "brokerGroup": row.broker_name,
                "queue": row.queue_id,
                "why": row.limited,
            }
            for row in table.queues
            if row.limited
        ],
        "lanes": [lane_fields(lane, now_ms) for lane in table.lanes],
    }


def lane_fields(lane: LaneShown, now_ms: int) -> dict[str, Any]:
    """Return the data of one lane; times in seconds."""
    return {
        "key": lane.key or None,
        "topic": lane.topic,
        "brokerGroup": lane.broker_name,
        "queue": lane.queue_id,
        "state": lane.state,
        "offset": lane.offset,
        "waiting": lane.waiting,
        "tries": lane.tries,
        "seconds": max(0, now_ms - lane.since_millis) / 1000,
        "dueSeconds": max(0, lane.due_millis - now_ms) / 1000 if lane.due_millis else None,
        "reason": lane.reason or None,
        "holder": lane.holder or None,
    }


def lane_lines(data: dict[str, Any]) -> list[str]:
    """Return the counts in one line, then each lane that is in trouble or long in hand, with its next step."""
    counts = f"Lanes: {data['inHand']} in hand, {data['ready']} ready, {data['parked']} parked"
    counts += f", {data['held']} held" + (
        f", {data['deadLettering']} dead-lettering" if data["deadLettering"] else ""
    )
    troubled = [
        each for each in data["lanes"] if each["state"] != "inHand" or each["seconds"] >= _LONG_S
    ]
    troubled.sort(key=lambda each: _NAMED.index(each["state"]))
    left = len(troubled) - SHOWN_MAX

    return [
        f"{counts}; {counted(data['owed'], 'message')} owed.",
        *(f"  {lane_line(each)}" for each in troubled[:SHOWN_MAX]),
        *([f"  and {left} more; --output json shows all."] if left > 0 else []),
        *_limited_lines(data["limited"]),
    ]


def _limited_lines(limited: list[dict[str, Any]]) -> list[str]:
    """Return one line for all queues of a topic at a broker group that hand out no new lanes for the same reason."""
    queues: dict[tuple[str, str, str], list[int]] = {}
    for each in limited:
        place = (each["topic"], each["brokerGroup"], each["why"])
        queues.setdefault(place, []).append(each["queue"])
    lines = []
    for (topic, broker_group, why), numbers in queues.items():
        named = ", ".join(map(str, numbers[:SHOWN_MAX]))
        more = f" and {len(numbers) - SHOWN_MAX} more" if len(numbers) > SHOWN_MAX else ""
        noun = "queue" if len(numbers) == 1 else "queues"
        lines.append(f"No new lanes of {noun} {named}{more} of {topic} at {broker_group}: {why}.")

    return lines


def lane_line(lane: dict[str, Any]) -> str:
    """Return the state of a lane and its next step."""
    name = lane["key"] or "a message without a key"
    place = f"offset {lane['offset']} of queue {lane['queue']} of {lane['topic']}"
    match lane["state"]:
        case "held":
            state = f"held after {counted(lane['tries'], 'try', 'tries')} until `orderlymq group release`"
        case "deadLettering":
            state = "its dead letter is being stored"
        case "inHand":
            state = f"in hand of {lane['holder']} for {lane['seconds']:.0f} s"
        case "ready":
            state = "ready for the next member that fetches"
        case _:
            state = f"parked, try {lane['tries'] + 1} in {lane['dueSeconds'] or 0:.0f} s"
    behind = lane["waiting"] - 1
    waiting = f", {behind} behind it" if behind > 0 else ""
    reason = f": {lane['reason']}" if lane["reason"] else ""

    return one_line(f"{name} ({place}, {state}{waiting}{reason})")
