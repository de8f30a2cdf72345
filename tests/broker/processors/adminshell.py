"""A leader that serves administrators, and helpers that compare its answers with captured ones."""

from typing import Any

from orderlymq_protocol.body import fastjson
from orderlymq_protocol.frame.command import RemotingCommand
from tests.broker.processors.driver import TOOL, Shell
from tests.protocol.golden import GoldenFrame, frames

# Members of a body whose keys are data: names, queues, numbers.
_KEYED_BY_DATA = frozenset(
    {
        "consumerTable",
        "data",
        "messageQueueTable",
        "offsetTable",
        "subscriptionGroupTable",
        "subscriptionTable",
        "topicConfigTable",
    }
)


class AdminShell(Shell):
    """A replica that is asked as tools do."""

    def tool(self, code: int, body: bytes = b"", **ext: Any) -> RemotingCommand:
        """Send a request as a tool does, on its own connection; ext values become texts."""
        texts = {
            name: str(value).lower() if isinstance(value, bool) else str(value)
            for name, value in ext.items()
        }
        return self.call(code, texts, body, caller=TOOL)

    def read(self, code: int, body: bytes = b"", **ext: Any) -> Any:
        """Return the decoded body of an answer, which must be a success."""
        reply = self.tool(code, body, **ext)
        assert reply.code == 0, reply
        return fastjson.loads(reply.body)


def create_topic(
    shell: AdminShell,
    name: str = "orders",
    queues: int = 4,
    *,
    write: int | None = None,
    order: bool = False,
    **more: Any,
) -> RemotingCommand:
    """Send request 17 as every client writes it."""
    ext: dict[str, Any] = {
        "topic": name,
        "defaultTopic": "TBW102",
        "readQueueNums": queues,
        "writeQueueNums": queues if write is None else write,
        "perm": 6,
        "topicFilterType": "SINGLE_TAG",
        "topicSysFlag": 0,
        "order": order,
    }
    return shell.tool(17, **{**ext, **more})


def golden(code: int, kind: str) -> list[GoldenFrame]:
    """Return the captured requests or responses of a code."""
    return [frame for frame in frames() if frame.code == code and frame.kind == kind]


def shape(value: Any, *, keyed_by_data: bool = False) -> Any:
    """Return the members and types of a decoded body; of maps with data keys and lists only one example."""
    if isinstance(value, dict):
        if keyed_by_data:
            return {"*": shape(next(iter(value.values())))} if value else {}
        return {name: shape(v, keyed_by_data=name in _KEYED_BY_DATA) for name, v in value.items()}
    if isinstance(value, list):
        return [shape(value[0])] if value else []
    return type(value).__name__


def missing(ours: Any, theirs: Any, path: str = "") -> list[str]:
    """Return the members of *theirs* that *ours* lacks or has with another type."""
    if isinstance(theirs, dict) and isinstance(ours, dict):
        return [
            lack
            for name, value in theirs.items()
            for lack in (
                missing(ours[name], value, f"{path}.{name}")
                if name in ours
                else [f"{path}.{name} is absent"]
            )
        ]
    if isinstance(theirs, list) and isinstance(ours, list):
        return missing(ours[0], theirs[0], f"{path}[]") if ours and theirs else []
    return [] if theirs == ours else [f"{path} is {ours}, not {theirs}"]
