"""Brokers' answers given by a test; pages use them like real ones."""

from collections.abc import Awaitable, Callable, Hashable, Mapping
from typing import Any

from orderlymq.admin.client import AdminClient
from orderlymq_console.cluster import Answers, ClusterReader, T
from orderlymq_console.collector import Collector, Reading
from orderlymq_console.pods import Pods
from orderlymq_console.status import StatusReport

ROW = {"group": "shipping", "topic": "orders", "queue": 0, "offset": 7, "since": 1_000}


def told(
    *rows: Mapping[str, Any], leader: int = 1, known: bool = True, examined: int = 1
) -> StatusReport:
    watch = {"examinedAt": examined, "blocked": rows, "blockedKnown": known}
    return StatusReport.model_validate({"leader": leader, "term": leader, "watch": watch})


class Readings(ClusterReader):
    """A reader of one broker group with answers that a test gives."""

    def __init__(self, status: StatusReport) -> None:
        super().__init__(AdminClient("127.0.0.1:1"), Collector())
        self.status = status
        self.answers: dict[str, Any] = {}

    def use_pods(self, pods: Pods) -> None:
        """Ask *pods* from now on, and forget earlier answers."""
        self._pods, self._listed = pods, None
        self.collector = Collector()

    async def of_each(
        self,
        about: Hashable,
        ask: Callable[[AdminClient], Awaitable[T]],
        *,
        every_s: float = 1.0,
        marks: Mapping[str, Hashable] | None = None,
    ) -> Answers[T]:
        kind = about[0] if isinstance(about, tuple) else about
        value = self.status if kind == "status" else self.answers.get(str(kind))
        reason = "" if value is not None else f"no answer about {kind}"
        return Answers({"broker-a": Reading(value, reason, self.collector.now_s())})
