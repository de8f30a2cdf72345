"""
Show what a supervisor does: live in a terminal, line by line elsewhere.

It shows the supervisor's snapshots (`Supervisor.snapshot`) and remembers only what it has shown.
"""

from types import TracebackType
from typing import Any, Self

from rich.console import Console
from rich.status import Status
from rich.text import Text


class Progress:
    """Prints each event once and, in a terminal, what is being waited for.

    Args:
        after: number of the last event that is not to be shown.
    """

    def __init__(
        self, *, quiet: bool = False, after: int = 0, console: Console | None = None
    ) -> None:
        self._console = console or Console(stderr=True, highlight=False)
        self._quiet = quiet
        self._seen = after
        self._status: Status | None = None

    def __enter__(self) -> Self:
        if not self._quiet and self._console.is_terminal:
            self._status = self._console.status("starting")
            self._status.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._status is not None:
            self._status.stop()

    def show(self, snapshot: dict[str, Any]) -> None:
        """Show what is new in *snapshot*."""
        if self._quiet:
            return
        for event in snapshot["events"]:
            if event["number"] > self._seen:
                self._seen = event["number"]
                self._console.print(f"  {event['text']}", markup=False)
        if self._status is not None:
            self._status.update(Text(waiting_for(snapshot)))


def last_event(snapshot: dict[str, Any]) -> int:
    """Return the number of the newest event; 0 if there is none."""
    return max((int(event["number"]) for event in snapshot["events"]), default=0)


def waiting_for(snapshot: dict[str, Any]) -> str:
    """Return what is missing, in a few words."""
    if snapshot["problem"]:
        return str(snapshot["problem"])
    for item in snapshot["resources"]:
        if item["ready"] != "True":
            return f"{item['kind']} {item['name']}: {item['message']}"
    return "ready" if snapshot["settled"] else "starting"


def summary(snapshot: dict[str, Any]) -> str:
    """Return a few lines that say what runs and where."""
    servers = ";".join(server["address"] for server in snapshot["nameServers"])
    lines = [f"Cluster {snapshot['cluster']} is up; name server {servers}"]
    for group in snapshot["groups"]:
        nodes = ", ".join(
            f"{replica['node']}{' (leader)' if replica['node'] == group['leader'] else ''}"
            for replica in group["replicas"]
        )
        lines.append(f"  {group['name']} on {group['address']}, replicas {nodes}")
    for kind in ("Topic", "ConsumerGroup"):
        names = [item["name"] for item in snapshot["resources"] if item["kind"] == kind]
        if names:
            word = "topics" if kind == "Topic" else "consumer groups"
            lines.append(f"  {word}: {', '.join(names)}")
    lines.append(f"  data and logs: {snapshot['dataDir']}")
    return "\n".join(lines + refused(snapshot))


def refused(snapshot: dict[str, Any]) -> list[str]:
    """Return lines about the resources that are refused and left alone while everything else is effective."""
    return [
        f"  unchanged: {item['message']}"
        for item in snapshot["resources"]
        if item["reason"] == "ResourceConflict"
    ]
