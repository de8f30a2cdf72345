"""
How many of a member's listener threads are at work, as its stacks show.

Java's clients and the Python SDK name these threads alike. One that waits for work stands in its pool; any other is in the listener, or in
what it calls.
"""

import re
from collections.abc import Iterator
from typing import Final

from orderlymq_console.models import Figure

# "ConsumeMessageThread_GROUP_1   TID: 41 STATE: WAITING" of Java, "thread ConsumeMessageThread-GROUP_0, id 41" of Python. Java's older
# clients leave the group out.
_HEAD: Final = re.compile(
    r"^(?:thread )?ConsumeMessageThread[-_](?:(?P<group>.*)_)?\d+(?:, id \d+$|\s+TID: )",
    re.MULTILINE,
)
_NEXT: Final = re.compile(r"^(?:thread |task |$)", re.MULTILINE)
# Java's clients cut the group's name in the name of a thread.
_GROUP_MAX: Final = 100
_IDLE_OF_JAVA: Final = "java.util.concurrent.ThreadPoolExecutor.getTask"
_IDLE_OF_PYTHON: Final = ", in _worker"


def busy_threads(stacks: str, group: str, *, is_cut: bool) -> Figure:
    """Return how many threads of the group's listener do not wait for work."""
    found = [*_of_group(stacks, group)]
    if not found:
        return Figure(unknown="its stacks name no listener threads")
    return Figure(value=sum(not _is_idle(each) for each in found), at_least=is_cut)


def _of_group(stacks: str, group: str) -> Iterator[str]:
    for head in _HEAD.finditer(stacks):
        if head["group"] in (None, group[:_GROUP_MAX]):
            end = _NEXT.search(stacks, head.end())
            yield stacks[head.end() : end.start() if end else len(stacks)]


def _is_idle(stack: str) -> bool:
    if _IDLE_OF_JAVA in stack:
        return True
    calls = [line for line in stack.splitlines() if line.lstrip().startswith("File ")]
    return bool(calls) and calls[-1].endswith(_IDLE_OF_PYTHON)
