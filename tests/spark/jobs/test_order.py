"""The order check against a simple model, and against injected defects."""

import json
import random
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from orderlymq.oracle.verdict import Defect
from orderlymq_protocol.body.messagequeue import MessageQueue
from orderlymq_spark.errors import OptionError
from orderlymq_spark.jobs.audit.job import check_files, files_of, report
from orderlymq_spark.jobs.audit.order import Break, OrderCheck
from orderlymq_spark.locations.addresses import location
from orderlymq_spark.offsets import QueueRange
from orderlymq_spark.specs import OrderAuditSpec
from orderlymq_spark.tables.parquet import path_of, published

Row = tuple[int, str, int]
ROWS = st.lists(st.tuples(st.sampled_from("ab"), st.integers(0, 12)), max_size=40)


def feed(check: OrderCheck, rows: list[Row]) -> list[Break]:
    return check.feed([r[0] for r in rows], [r[1] for r in rows], [r[2] for r in rows])


def clean(count: int, keys: int) -> list[Row]:
    return [(number, f"key-{number % keys}", number // keys) for number in range(count)]


@given(ROWS, st.lists(st.integers(0, 40), max_size=6))
def test_the_result_does_not_depend_on_the_cut(
    pairs: list[tuple[str, int]], cuts: list[int]
) -> None:
    """One batch or many, with the state saved as JSON between them, give the same findings and state."""
    rows = [(number, key, sequence) for number, (key, sequence) in enumerate(pairs)]
    whole = OrderCheck("q")
    expected = feed(whole, rows)

    check, found, at = OrderCheck("q"), [], 0
    for cut in [*sorted(cuts), len(rows)]:
        found += feed(check, rows[at:cut])
        check = OrderCheck.from_state(json.loads(json.dumps(check.to_state())))
        at = max(at, cut)

    assert (found, check) == (expected, whole)


@given(ROWS)
def test_a_number_is_judged_by_what_came_before(pairs: list[tuple[str, int]]) -> None:
    """The model keeps all numbers of a key in a set, and finds the highest by max()."""
    rows = [(number, key, sequence) for number, (key, sequence) in enumerate(pairs)]
    expected: list[tuple[int, Defect]] = []
    seen: dict[str, set[int]] = {}
    for offset, key, sequence in rows:
        before = seen.setdefault(key, set())
        if sequence in before:
            expected.append((offset, Defect.DUPLICATED))
        elif before and sequence < max(before):
            expected.append((offset, Defect.REORDERED))
        elif before and sequence > max(before) + 1:
            expected.append((offset, Defect.SKIPPED))
        before.add(sequence)

    assert [(each.offset, each.defect) for each in feed(OrderCheck("q"), rows)] == expected


def test_every_jump_of_a_key_is_remembered() -> None:
    """Once, only 64 of 100 gaps of a key were remembered, and later numbers that had never come counted as repeated."""
    check = OrderCheck("q")
    found = feed(check, [(n, "a", 2 * n) for n in range(101)])
    assert (len(found), check.missing) == (100, 100)

    assert feed(check, [(101, "a", 1), (102, "a", 1), (103, "a", 77)]) == [
        Break("q", 101, Defect.REORDERED, "a", 201, 1),
        Break("q", 102, Defect.DUPLICATED, "a", 201, 1),
        Break("q", 103, Defect.REORDERED, "a", 201, 77),
    ]
    assert (check.missing, check.undecided) == (98, 0)


@given(ROWS, st.lists(st.integers(0, 40), max_size=6), st.integers(0, 4))
def test_beyond_the_bound_no_finding_is_untrue(
    pairs: list[tuple[str, int]], cuts: list[int], open_max: int
) -> None:
    """The model is a check without a bound; its repeated or late numbers are found as such, or as late and undecided."""
    rows = [(number, key, sequence) for number, (key, sequence) in enumerate(pairs)]
    exact, check = OrderCheck("q"), OrderCheck("q", open_max=open_max)
    expected, found, at = feed(exact, rows), [], 0
    for cut in [*sorted(cuts), len(rows)]:
        found += feed(check, rows[at:cut])
        state = json.loads(json.dumps(check.to_state()))
        check = OrderCheck.from_state({**state, "open_max": open_max})
        at = max(at, cut)

    late = [(one, other) for one, other in zip(expected, found, strict=True) if one != other]
    assert {(one.defect, other.defect) for one, other in late} <= {
        (Defect.DUPLICATED, Defect.REORDERED)
    }
    assert len(late) <= check.undecided
    assert check.missing - check.undecided <= exact.missing <= check.missing
    assert sum(map(len, check.open.values())) <= open_max
    if not check.given_up:
        assert (found, check.missing) == (expected, exact.missing)


def test_the_report_says_what_is_undecided() -> None:
    summary = {"queue": "q", "keys": 1, "missing": 3, "rows": 9, "reordered": 2, "undecided": 1}

    said = report(OrderAuditSpec(type="order-audit", archive=location("a")), [], [summary])

    assert said.data["undecided"] == 1
    assert said.text.splitlines()[1:] == [
        "undecided: 1 of the late numbers may have been seen before, because more jumps are open than the audit remembers",
        "The order is broken: 2 reordered",
    ]


def test_a_clean_log_has_no_finding() -> None:
    check = OrderCheck("q", first_sequence=0)

    assert feed(check, clean(10_000, 77)) == []
    assert (check.missing, check.counts) == (0, {"rows": 10_000})


def test_every_injected_defect_is_found_and_placed() -> None:
    """Gaps, repeats and inversions are placed at random in a large log."""
    chance = random.Random(7)
    sequences = [list(range(200)) for _ in range(50)]
    expected: set[tuple[str, Defect, int, int]] = set()
    for number, own in enumerate(sequences):
        kind, at = chance.choice(["gap", "repeat", "inversion", ""]), chance.randrange(5, 190)
        key = f"key-{number}"
        if kind == "gap":
            del own[at]
            expected.add((key, Defect.SKIPPED, at, at + 1))
        elif kind == "repeat":
            own.insert(at + 1, at)
            expected.add((key, Defect.DUPLICATED, at + 1, at))
        elif kind == "inversion":
            own[at], own[at + 1] = own[at + 1], own[at]
            expected |= {
                (key, Defect.SKIPPED, at, at + 1),
                (key, Defect.REORDERED, at + 2, at),
            }
    turns = [number for number, own in enumerate(sequences) for _ in own]
    chance.shuffle(turns)
    queues = [iter(own) for own in sequences]
    rows = [(offset, f"key-{n}", next(queues[n])) for offset, n in enumerate(turns)]

    found = feed(OrderCheck("q"), rows)

    assert {(each.key, each.defect, each.expected, each.got) for each in found} == expected
    places = {offset: (key, sequence) for offset, key, sequence in rows}
    assert all(places[each.offset] == (each.key, each.got) for each in found)


def test_holes_of_the_queue_and_new_epochs() -> None:
    """A missing offset is a loss; numbers may begin again under a higher epoch, but not under a lower one."""
    check = OrderCheck("q")

    found = check.feed([0, 1, 3, 4, 5], ["a"] * 5, [0, 1, 2, 0, 3], [1, 1, 1, 2, 1])

    assert found == [
        Break("q", 3, Defect.LOST, "", 2, 3),
        Break("q", 5, Defect.REORDERED, "a", 2, 1),
    ]


@pytest.mark.parametrize(
    ("files", "broken"),
    [
        ({(0, 10): range(10), (10, 20): range(10, 20)}, []),
        ({(0, 10): range(1, 10), (10, 20): range(10, 20)}, [("lost", 1, 0)]),
        ({(0, 10): range(10), (10, 20): range(10, 19)}, [("lost", 20, 19)]),
        ({(0, 10): (), (10, 20): ()}, [("lost", 20, 0)]),
        (
            {(0, 10): range(10), (0, 12): range(12), (12, 20): range(12, 20)},
            [("duplicated", 0, 10)],
        ),
    ],
    ids=["whole", "first row", "last row", "all rows", "twice"],
)
def test_an_archive_has_the_rows_that_the_names_of_its_files_say(
    tmp_path: Path, files: dict[tuple[int, int], range], broken: list[tuple[str, int, int]]
) -> None:
    """Missing rows at either end of a file, and a file within a larger one, are found even if no later row shows them."""
    root = location(tmp_path)
    queue = MessageQueue("orders", "g", 0)
    for (start, end), offsets in files.items():
        nulls = {name: pa.nulls(len(offsets)) for name in ("sharding_key", "seq", "epoch")}
        path = Path(str(path_of(root, QueueRange(queue, start, end))))
        path.parent.mkdir(parents=True, exist_ok=True)
        pq.write_table(pa.table({"queue_offset": pa.array(offsets, pa.int64()), **nulls}), path)

    spec = OrderAuditSpec(type="order-audit", archive=root)
    *found, last = map(json.loads, check_files(spec, root, published(root)))

    breaks = [each["break"] for each in found]
    assert [(each["defect"], each["offset"], each["expected"]) for each in breaks] == broken
    assert sum(last["summary"].get(defect.value, 0) for defect in Defect) == len(broken)


def test_no_topic_that_is_to_be_audited_is_left_out_in_silence(tmp_path: Path) -> None:
    """The order of a misspelt topic, or one of another archive, used to count as kept."""
    root = location(tmp_path)
    parts = [QueueRange(MessageQueue(topic, "g", 0), 0, 10) for topic in ("orders", "payments")]
    for part in parts:
        path_of(root, part).write("")

    assert files_of(root, ["orders"]) == [parts[:1]]
    assert files_of(root, None) == [parts[:1], parts[1:]]
    with pytest.raises(OptionError, match=r"no files of paymnts.*has files of: orders, payments"):
        files_of(root, ["orders", "paymnts"])
    with pytest.raises(OptionError, match=r"no files of any topic.*has files of: none"):
        files_of(root / "empty", None)
