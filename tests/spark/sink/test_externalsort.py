"""Sorting beyond memory: the order does not depend on the number of items held; limits of memory; a full disk."""

import resource
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager
from itertools import zip_longest

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orderlymq_protocol.body.messagequeue import MessageQueue
from orderlymq_spark.errors import SpillFailed
from orderlymq_spark.sink.externalsort import ExternalSort, SpillFile
from orderlymq_spark.sink.messages import queue_messages

# 150,000 rows of 2 KiB, with a key each, in a process that may use only 150 MiB more than at its start.
HELD_FLAT = """
import resource
from orderlymq_protocol.body.messagequeue import MessageQueue
from orderlymq_spark.sink.messages import queue_messages

rows = ({"sharding_key": f"k{n}", "body": f"{n:02048}", "at": -n} for n in range(150_000))
queues = [MessageQueue("T", "b", number) for number in range(4)]
size = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize() + (150 << 20)
resource.setrlimit(resource.RLIMIT_AS, (size, size))
with queue_messages(
    rows, lambda topic: queues, topic="T", order_by=["at"], app_id="job", batch="7"
) as load:
    for part in load.parts:
        bodies = [-1, 1 << 60]
        for message in part.messages:
            bodies = [bodies[1], int(message.body)]
            assert bodies[0] > bodies[1]
    print(len(load.keys))
"""


@given(st.lists(st.integers(0, 9)), st.integers(1, 5))
def test_items_come_in_order_however_many_are_held(items: list[int], held_max: int) -> None:
    with closing(SpillFile[tuple[int, int]]()) as file:
        sort = ExternalSort(file, held_max)
        for number, item in enumerate(items):
            sort.add((item, number))

        assert list(sort.in_order()) == sorted(zip(items, range(len(items)), strict=True))


@given(st.lists(st.lists(st.binary(max_size=300), max_size=300), max_size=4))
def test_lists_are_read_side_by_side(lists: list[list[bytes]]) -> None:
    with closing(SpillFile[bytes]()) as file:
        places = [file.write(each) for each in lists]
        readers = [file.read(place) for place in places]

        found = list(zip_longest(*readers))
        assert found == list(zip_longest(*lists))


@pytest.mark.timeout(300)
def test_the_memory_of_a_task_does_not_grow_with_its_rows() -> None:
    """The bodies alone have twice the size of the memory that the process may use."""
    run = subprocess.run(
        [sys.executable, "-c", HELD_FLAT], capture_output=True, text=True, check=False
    )

    assert run.stdout.strip() == "150000", run.stderr[-2000:]


@contextmanager
def files_no_larger_than(size: int) -> Iterator[None]:
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_a_full_folder_is_an_error_before_anything_is_sent() -> None:
    rows = ({"sharding_key": "k", "body": b"x" * (1 << 20)} for _ in range(100))
    queues = [MessageQueue("T", "b", 0)]
    with (
        files_no_larger_than(40 << 20),
        pytest.raises(SpillFailed, match=r"this try has sent nothing.*spark\.local\.dir"),
        queue_messages(rows, lambda _: queues, topic="T", order_by=[], app_id="job", batch="7"),
    ):
        pytest.fail("it has room")
