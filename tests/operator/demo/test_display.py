import io

from rich.console import Console

from orderlymq.oracle.verdict import Event, Kind, judge
from orderlymq_operator.demo.display import Display, Scoreboard, verdict_table
from orderlymq_operator.demo.reports import Report, parse
from orderlymq_operator.demo.run import acknowledged_per_second


def _board() -> Scoreboard:
    board = Scoreboard()
    board.take(Report("producer-1", "producer", sent=5, acknowledged=4, in_flight=1))
    board.take(Report("consumer-1", "consumer", delivered=3, queues={"demo-0:0": 7}))
    board.take(Report("consumer-2", "consumer", delivered=1, queues={"demo-0:0": 4, "demo-0:1": 2}))
    return board


def test_the_scoreboard_adds_what_the_processes_report() -> None:
    """Law: the scoreboard sums the processes' latest reports and shows a queue at its newest owner."""
    board = _board()
    board.take(Report("producer-1", "producer", sent=6, acknowledged=6))

    assert (board.total("sent"), board.total("acknowledged"), board.total("delivered")) == (6, 6, 4)
    assert board.queues() == {"demo-0:0": (7, "consumer-1"), "demo-0:1": (2, "consumer-2")}


def test_without_a_terminal_the_demo_prints_plain_lines() -> None:
    """Law: without a terminal the demo prints plain lines: every event once, and the counts from time to time."""
    text = io.StringIO()
    board = _board()
    board.event("SIGKILL to the leader")

    with Display(board, quiet=False, console=Console(file=text, width=100)) as display:
        display.refresh()
        display.refresh()

    lines = [line[10:] for line in text.getvalue().splitlines()]
    assert lines == [
        "SIGKILL to the leader",
        "acknowledged 4, delivered 4, orders done 0, in flight 1",
    ]
    assert "\x1b" not in text.getvalue()


def test_in_a_terminal_every_queue_has_a_line() -> None:
    """Law: in a terminal every queue has a line, in any state."""
    text = io.StringIO()
    console = Console(file=text, force_terminal=True, width=100)

    with Display(_board(), quiet=False, console=console) as display:
        display.refresh()

    assert "demo-0:1" in text.getvalue()
    assert "consumer-2" in text.getvalue()


def test_quiet_means_quiet() -> None:
    """Law: with quiet nothing is printed, because JSON output must not be disturbed."""
    text = io.StringIO()
    board = _board()
    board.event("something")

    with Display(board, quiet=True, console=Console(file=text)) as display:
        display.refresh()
        display.show_verdict(judge([]), 0.0)

    assert text.getvalue() == ""


def _event(at: int, kind: Kind, message: str, offset: int = -1, group: str = "") -> Event:
    return Event(
        at, kind, "p", "orders", "a", message, queue="demo-0:0", offset=offset, group=group
    )


def _history(*, drained: bool, deliveries: tuple[str, ...]) -> list[Event]:
    events: list[Event] = []
    for offset, message in enumerate(("m0", "m1")):
        events.append(_event(len(events), Kind.SEND, message))
        events.append(_event(len(events), Kind.ACK, message, offset))
    for message in deliveries:
        events.append(_event(len(events), Kind.DELIVER, message, int(message[1]), "g"))
    if drained:
        events.append(Event(len(events), Kind.DRAINED, topic="orders", group="g"))
    return events


def _shown(events: list[Event]) -> str:
    text = io.StringIO()
    Console(file=text, width=100).print(
        verdict_table(judge(events), acknowledged_per_second(events))
    )
    return text.getvalue()


def test_the_table_says_what_the_oracle_found() -> None:
    """Law: the table says "order kept" only if nothing was found and everything was judged."""
    kept = _shown(_history(drained=True, deliveries=("m0", "m1")))
    lost = _shown(_history(drained=True, deliveries=("m0",)))
    open_ = _shown(_history(drained=False, deliveries=("m0", "m1")))
    reordered = _shown(_history(drained=True, deliveries=("m1", "m0")))

    assert "order kept" in kept
    assert "ORDER NOT PROVEN" in lost
    assert "ORDER NOT PROVEN" in open_
    assert "loss in topic orders" in open_
    assert "ORDER NOT PROVEN" in reordered


def test_lines_that_are_no_report_are_passed_over() -> None:
    """Law: lines that are no report, such as an interpreter's warnings, are ignored."""
    assert parse(b"a warning\n") is None
    assert parse(b'{"process":"p","role":"producer","sent":3}\n') == Report("p", "producer", sent=3)


def test_the_rate_runs_from_the_first_send_to_the_last_acknowledgement() -> None:
    """Law: the rate is measured from the first send to the last acknowledgement."""
    second = 10**9
    events = [
        _event(0, Kind.SEND, "m0"),
        _event(second, Kind.ACK, "m0", 0),
        _event(second, Kind.SEND, "m1"),
        _event(2 * second, Kind.ACK, "m1", 1),
        _event(9 * second, Kind.DELIVER, "m1", 1, "g"),
    ]

    assert acknowledged_per_second(events) == 1.0
    assert acknowledged_per_second([]) == 0.0
