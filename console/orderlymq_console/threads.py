"""
Count the busy listener threads of a member from its thread stacks.

Java clients and the Python SDK give these threads similar names. A thread that waits for work stands in a function of its pool.
Any other thread runs the listener or a function that the listener calls.
"""

import re
from collections.abc import Iterator
from typing import Final

from orderlymq_console.models import Figure

# Java writes "ConsumeMessageThread_GROUP_1   TID: 41 STATE: WAITING", Python writes "thread ConsumeMessageThread-GROUP_0, id 41".
# Older Java clients leave out the group.
_HEAD: Final = re.compile(
    r"^(?:thread )?ConsumeMessageThread[-_](?:(?P<group>.*)_)?\d+(?:, id \d+$|\s+TID: )",
    re.MULTILINE,
)
_NEXT: Final = re.compile(r"^(?:thread |task |$)", re.MULTILINE)
# Java clients cut the group name in a thread name to this length.
_GROUP_MAX: Final = 100
_IDLE_OF_JAVA: Final = "java.util.concurrent.ThreadPoolExecutor.getTask"
_IDLE_OF_PYTHON: Final = ", in _worker"


def busy_threads(stacks: str, group: str, *, is_cut: bool) -> Figure:
    """Return how many listener threads of a consumer group are busy; a lower bound if the stacks are cut."""
    found = [*_of_group(stacks, group)]
    if not found:
        return Figure(unknown="its stacks do not name listener threads")
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
