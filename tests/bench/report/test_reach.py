"""The head of the page: our results next to their targets."""

from bench.report.reach import AIMS, ceiling, head
from bench.report.results import Line
from bench.works import WORKS


def line(peer: str, work: str, **figures: float) -> Line:
    return Line("full", peer, work, 0, dict(figures))


def test_the_widest_gap_comes_first_beside_the_best_of_the_others() -> None:
    lines = [
        line("orderlymq-compiled", "send-1-1024", p50_ms=0.8, p99_ms=2.0),
        line("nats-always", "send-1-1024", p50_ms=0.85, p99_ms=1.0),
        line("rabbitmq", "send-1-1024", p50_ms=0.4, p99_ms=1.6),
        line("orderlymq-compiled", "start", start_s=8.0),
        line("orderlymq-compiled", "drain-1", rate=150_000.0),
        line("orderlymq-compiled", "drain-4", rate=180_000.0),
    ]

    assert list(head(lines)) == [
        "* start, seconds: the aim 2.00, ours 8.00; 0.25x",
        "* one sender, p50, ms: RabbitMQ quorum queues 0.40, ours 0.80; 0.50x, aim 1.00x",
        "* one sender, p99, ms: NATS JetStream 2.15.3, sync always 1.00, ours 2.00; 0.50x, aim 1.00x",
        "* drain by four against one, messages/s: OrderlyMQ, compiled as in the image 150,000, ours 180,000; 1.20x, aim 1.00x",
    ]


def test_the_head_has_ten_lines_at_most() -> None:
    """If rows are left out, they are those with the best results."""
    names = ("orderlymq-compiled", "orderlymq-async", "nats-always", "rocketmq")
    lines = [
        line(name, work, **{figure.key: 1.0 for figure in WORKS[work].figures})
        for name in names
        for work in {aim.work for aim in AIMS}
    ]

    found = list(head(lines))
    assert len(found) == 10
    assert found[0].startswith("* consumer killed, seconds: the aim 0.03, ours 1.00")
    assert not any(each.startswith("* start") for each in found)


def test_a_page_without_ours_has_no_head() -> None:
    assert list(head([line("nats-always", "send-64-1024", rate=1.0)])) == []


def test_a_drain_by_four_names_its_bound() -> None:
    lines = [line("orderlymq-compiled", "drain-4", cpu_us=3.6, client_us=10.4, rate=135_796.0)]

    assert list(ceiling(lines, 2)) == [
        "OrderlyMQ, compiled as in the image: a message takes 3.60 µs of CPU time in the cluster and 10.4 µs in the client,"
        " 14.0 µs in all, so 2 CPUs allow at most 143 k/s. It drained 136 k/s.",
        "",
    ]
