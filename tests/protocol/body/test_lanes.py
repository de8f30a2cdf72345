"""Bodies of key lanes: the contents of the answer to a fetch, and the bodies that are refused."""

import pytest

from orderlymq_protocol.body.declaration import ModelError
from orderlymq_protocol.body.fastjson import JsonError
from orderlymq_protocol.body.lanes import (
    DELAY_MS_MAX,
    Lane,
    LaneReport,
    LaneReports,
    LanesFetched,
    LaneVerdict,
    LaneVerdicts,
)

FETCHED = LanesFetched(
    (Lane(3, 7, 9, "order-4711", (12, 15), 2, 40, 1_000), Lane(0, 8, 8, "", (1,))), 30_000
)


def test_what_a_fetch_got_comes_with_its_records() -> None:
    """Lanes and stored records are sent in one body and are separated again by the reader."""
    body = FETCHED.encode([b"first", memoryview(b"second")])

    fetched, records = LanesFetched.decode(body)

    assert fetched == FETCHED
    assert bytes(records) == b"firstsecond"


@pytest.mark.parametrize("body", [b"", b"\x00\x00\x00", b"\x00\x00\x00\x09{}"])
def test_an_answer_that_is_cut_off_is_no_answer(body: bytes) -> None:
    """A body that ends before the lanes are complete is refused with an error that names them."""
    with pytest.raises(ModelError):
        LanesFetched.decode(body)


def test_an_answer_that_is_no_json_is_refused() -> None:
    """The bytes of the lanes are refused if they are not JSON."""
    with pytest.raises(JsonError):
        LanesFetched.decode(b"\x00\x00\x00\x02{]")


@pytest.mark.parametrize(
    "report",
    [
        b'{"lanes":[{"queueId":-1,"lane":1,"attempt":1,"result":"done"}]}',
        b'{"lanes":[{"queueId":0,"lane":1,"attempt":-1,"result":"done"}]}',
        b'{"lanes":[{"queueId":0,"lane":1,"attempt":1,"result":"done","offset":-2}]}',
        b'{"lanes":[{"queueId":0,"lane":1,"attempt":true,"result":"done"}]}',
        b'{"lanes":[{"queueId":0,"lane":1,"attempt":1}]}',
        f'{{"lanes":[{{"queueId":0,"lane":1,"attempt":1,"result":"retry","delayMillis":{DELAY_MS_MAX + 1}}}]}}'.encode(),
    ],
)
def test_numbers_out_of_range_are_refused(report: bytes) -> None:
    """A report is refused if it has numbers that no broker can have handed out."""
    with pytest.raises(ModelError):
        LaneReports.from_json(report)


def test_a_report_says_little_where_little_is_to_say() -> None:
    """A report of a finished attempt needs only its numbers, its result and its last offset."""
    reports = LaneReports.from_json(
        b'{"lanes":[{"queueId":3,"lane":7,"attempt":9,"result":"done","offset":15}]}'
    )

    assert reports == LaneReports((LaneReport(3, 7, 9, "done", 15),))


def test_what_is_done_needs_no_verdict() -> None:
    """An answer names only the reports that were not accepted; all others were accepted."""
    reports = [LaneReport(0, lane, lane, "done", lane) for lane in range(4)]
    stale, parked = LaneVerdict(0, 1, 1, "stale", remark="over"), LaneVerdict(0, 3, 3, "parked", 2)

    body = LaneVerdicts((stale, parked)).to_json()
    verdicts = LaneVerdicts.from_json(body).of(reports)

    assert verdicts == (LaneVerdict(0, 0, 0, "done"), stale, LaneVerdict(0, 2, 2, "done"), parked)


@pytest.mark.parametrize("lanes", [(4,), (2, 1), (1, 1)], ids=["another", "order", "twice"])
def test_verdicts_about_other_reports_are_refused(lanes: tuple[int, ...]) -> None:
    """An answer that names reports of another request is refused."""
    reports = [LaneReport(0, lane, lane, "done", lane) for lane in range(4)]

    with pytest.raises(ModelError):
        LaneVerdicts(tuple(LaneVerdict(0, lane, lane, "stale") for lane in lanes)).of(reports)


def test_members_with_their_default_are_not_written() -> None:
    """Members with default values are left out, so that a request about 256 lanes stays small."""
    report = LaneReports((LaneReport(3, 7, 9, "done", 15),)).to_json()

    assert report == b'{"lanes":[{"attempt":9,"lane":7,"offset":15,"queueId":3,"result":"done"}]}'
