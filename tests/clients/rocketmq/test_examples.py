"""
RocketMQ's own example programs, as Apache publishes them, against our brokers.

Each is the class of the artifact ``rocketmq-example``, started by its ``main``; only the address and
the names of broker and cluster that stand in it as constants are replaced by ours, and the names of
topics and groups by names of the test's own, so that a second try finds nothing of the first. What it
prints is the evidence: so many sends with SEND_OK, so many messages received, in which order.
"""

import itertools
import os
import re
import subprocess
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Self

import pytest

from tests.clients.localcluster import LocalCluster
from tests.clients.programs import missing, run_maven
from tests.clients.rocketmq.classfiles import unpack

pytestmark = [
    pytest.mark.java,
    pytest.mark.cluster,
    pytest.mark.timeout(240),
]

VERSIONS = ("4.5.2", "4.7.0", "5.5.0")
PACKAGE = "org.apache.rocketmq.example."
FOLDER = Path(__file__).parent / "examples"

# The Netty of 4.x reaches into classes that Java has closed since.
_OPENED = [
    f"--add-opens=java.base/{package}=ALL-UNNAMED"
    for package in ("java.lang", "java.nio", "java.util", "sun.nio.ch", "jdk.internal.misc")
]

#: The beginnings of the names of topics and groups; the topics of the load programs belong to the broker.
NAMES = (
    "BatchTest",
    "CID_JODIE_1",
    "ExampleConsumer",
    "GroupName1",
    "Jodie_topic_1023",
    "OMS_CONSUMER",
    "OMS_HELLO_TOPIC",
    "ProducerGroupName",
    "RequestTopic",
    "SqlFilterTest",
    "TagFilterTest",
    "TestTopic",
    "TimerMessageConsumerGroup",
    "TimerTopic",
    "TopicTest",
    "cidTest",
    "lite_pull_consumer_test",
    "please_rename_unique_group_name",
    "topicTest",
)
# RocketMQ's threads outlive a `main` that has failed: such a program never ends.
_DIED = 'Exception in thread "main"'
# The words of a producer that has waited 3 s for an answer, a limit that the examples do not set. 10 000 messages of one
# batch take that long where many programs share a slow machine.
_TOO_SLOW = "sendDefaultImpl call timeout"

#: Programs that need what this broker does not have, with its answer.
NOT_SERVED = {
    "lmq.LMQPushPopConsumer": "POP consumption, a protocol of RocketMQ 5's proxy; answered with code 3",
    "simple.PopConsumer": "POP consumption, a protocol of RocketMQ 5's proxy; answered with code 3",
    "lmq.LMQProducer": "light queues (enableLmq is false in RocketMQ, too): stored as a plain message",
    "lmq.LMQPullConsumer": "light queues",
    "lmq.LMQPushConsumer": "light queues",
}
#: Programs that are no use as a test.
NO_TEST = {
    "simple.AclClient": "needs the account that stands in it; test_java_access.py covers its hook",
    "simple.PullConsumer": "prints nothing",
    "simple.TestProducer": "looks for what it has sent before it can be found, and never ends",
    "simple.PullConsumerTest": "waits for a broker named like its author's computer",
    "openmessaging.SimplePullConsumer": "sends to a topic that it then does not end reading",
}


class Running:
    """A running example: every line it has printed so far."""

    def __init__(self, command: list[str], environment: dict[str, str], folder: Path) -> None:
        self.lines: list[str] = []
        self._news = threading.Condition()
        self._process = subprocess.Popen(
            command,
            cwd=folder,
            env={**os.environ, **environment},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
        )
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            with self._news:
                self.lines.append(line)
                self._news.notify_all()

    def until(
        self, pattern: str, count: int = 1, *, timeout_s: float = 60
    ) -> list[tuple[str, ...]]:
        """Wait for *count* matches and return the groups of all; a program that never ends is killed later."""
        end = time.monotonic() + timeout_s
        while True:
            found = [each.groups() for each in re.finditer(pattern, "".join(self.lines))]
            if len(found) >= count:
                return found
            left = end - time.monotonic()
            ended = self._has_ended()
            if left <= 0 or ended:
                raise AssertionError(
                    f"{len(found)} of {count} {pattern!r} ({'ended' if ended else 'time-out'}): "
                    f"{''.join(self.lines[-20:])[-3000:]}"
                )
            with self._news:
                self._news.wait(min(left, 0.2))

    def finish(self, *, timeout_s: float = 90) -> str:
        """Wait for its own end, which must be without an error; return what it has printed."""
        end = time.monotonic() + timeout_s
        while not self._has_ended() and time.monotonic() < end:
            with self._news:
                self._news.wait(0.2)
        text = "".join(self.lines)
        code = self._process.poll()
        assert code == 0, f"exit code {code} (None: it has not ended): {text[-3000:]}"
        return text

    def _has_ended(self) -> bool:
        """Return whether nothing is to be expected any more."""
        if any(line.startswith(_DIED) for line in self.lines):
            return True
        return self._process.poll() is not None and not self._reader.is_alive()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._process.poll() is None:
            self._process.kill()
        self._process.wait()
        self._reader.join()
        if self._process.stdout is not None:
            self._process.stdout.close()


@dataclass
class Examples:
    """The examples of one version, with the address of a running cluster and a try's names in them."""

    cluster: LocalCluster
    version: str
    classes: Path
    suffix: str = ""

    def name(self, text: str) -> str:
        """Return what stands instead of a topic or group, or of a text with such names."""
        for name in NAMES:
            text = text.replace(name, name + self.suffix)
        return text

    def start(self, program: str, *words: str) -> Running:
        home = self.cluster.directory
        # Without it the clients of 4.x log to standard output, exceptions of Netty's included.
        (home / "logback.xml").write_text("<configuration/>\n")
        command = [
            "java",
            "-Xmx256m",
            "-XX:TieredStopAtLevel=1",
            *(_OPENED if self.version.startswith("4") else ()),
            f"-Duser.home={home}",
            f"-Drocketmq.client.logRoot={home}",
            "-Drocketmq.client.logLevel=ERROR",
            f"-Dlogback.configurationFile={home / 'logback.xml'}",
            "-cp",
            f"{self.classes}:{FOLDER / 'target' / self.version / 'lib'}/*",
            PACKAGE + program,
            *words,
        ]
        return Running(command, {"NAMESRV_ADDR": self.cluster.name_server}, home)

    def finish(self, program: str, *words: str) -> str:
        with self.start(program, *words) as running:
            return running.finish()

    def has(self, program: str) -> bool:
        return (self.classes / (PACKAGE + program).replace(".", "/")).with_suffix(".class").exists()


def _unpacked(version: str, cluster: LocalCluster, suffix: str = "") -> Path:
    reason = missing("java", "mvn")
    if reason:
        pytest.skip(reason)
    run_maven(FOLDER, version)
    target = cluster.directory / f"examples-{version}{suffix}"
    if not target.exists():
        unpack(
            FOLDER / "target" / version / "lib" / f"rocketmq-example-{version}.jar",
            target,
            {
                "127.0.0.1:9876": cluster.name_server,
                "localhost:9876": cluster.name_server,
                "broker-a": "clients-0",
                "DefaultCluster": "clients",
                **{name: name + suffix for name in NAMES},
            },
        )
    return target


_tries = itertools.count(1)


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    """One cluster for all, because each try has topics and groups of its own."""
    reason = missing("java", "mvn")
    if reason:
        pytest.skip(reason)
    cluster = LocalCluster(tmp_path_factory.mktemp("examples"), replicas=1)
    cluster.up()
    yield cluster
    cluster.down()


@pytest.fixture
def examples(request: pytest.FixtureRequest, running: LocalCluster) -> Examples:
    return _examples(running, request.param)


@pytest.fixture
def newest(running: LocalCluster) -> Examples:
    return _examples(running, VERSIONS[-1])


def _examples(cluster: LocalCluster, version: str) -> Examples:
    suffix = f"_t{next(_tries)}"

    return Examples(cluster, version, _unpacked(version, cluster, suffix), suffix)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "examples" in metafunc.fixturenames:
        whole = metafunc.config.getoption("--whole-suite")
        metafunc.parametrize("examples", VERSIONS if whole else VERSIONS[-1:], indirect=True)


def sent(text: str) -> int:
    """Return how many sends were acknowledged; no other result may be in *text*."""
    assert set(re.findall(r"sendStatus=(\w+)", text)) <= {"SEND_OK"}
    assert "Exception" not in text, text[-3000:]
    return len(re.findall(r"sendStatus=SEND_OK", text))


def keys(text: str) -> list[str]:
    return re.findall(r"KEYS=(\w+)", text)


RECEIVED = r"Receive New Messages"
MESSAGE = r"MessageExt \["


def test_quick_start(examples: Examples) -> None:
    """1 000 sends; push, broadcast, pull by schedule and by hand find all of them."""
    assert sent(examples.finish("quickstart.Producer")) == 1_000
    assert sent(examples.finish("simple.Producer")) == 128

    with examples.start("quickstart.Consumer") as consumer:
        consumer.until(RECEIVED, 1_128)
    with examples.start("simple.PushConsumer") as consumer:
        consumer.until(RECEIVED, 1_128)
    with examples.start("broadcast.PushConsumer") as consumer:
        consumer.until(RECEIVED, 1_128)
    with examples.start("simple.PullScheduleService") as consumer:
        consumer.until(r"pullStatus=FOUND, nextBeginOffset=\d+, .*msgFoundList=32", 20)


def test_orderly_listener(examples: Examples) -> None:
    """The sends of an order go to its queue; an orderly listener sees offsets rise in each queue."""
    text = examples.finish("ordermessage.Producer")
    assert sent(text) == 100
    queues: dict[int, set[str]] = {}
    for number, queue in enumerate(re.findall(r"queueId=(\d+)", text)):
        queues.setdefault(number % 10, set()).add(queue)
    assert all(len(each) == 1 for each in queues.values())

    words = f"-g operators -t {examples.name('TopicTest')} -a TagA -k key -c 5".split()
    sent_now = sent(examples.finish("operation.Producer", *words))
    with examples.start("ordermessage.Consumer") as consumer:
        lines = consumer.until(r"queueId=(\d+), .*?queueOffset=(\d+)", sent_now)
    offsets: dict[str, list[int]] = {}
    for queue, offset in lines:
        offsets.setdefault(queue, []).append(int(offset))
    # The example listener asks for a pause with every few messages: each comes until it is done.
    assert all(sorted(each) == each for each in offsets.values())


def test_batches(examples: Examples) -> None:
    """A small batch, and 100 000 messages split into batches of at most 1 MB."""
    topic = examples.name("BatchTest")
    # Those of 4.x do not end by themselves, nor do they print anything.
    with examples.start("batch.SimpleBatchProducer") as small:
        assert _wait_stored(examples, topic, 3, small)
    for _ in range(3):
        before = _stored(examples, topic)
        with examples.start("batch.SplitBatchProducer") as split:
            if _wait_stored(examples, topic, before + 100_000, split):
                return
        time.sleep(4)  # the broker stores what it has got, also behind the client's back
    pytest.fail(f"the client gave up {_TOO_SLOW!r} three times")


def _wait_stored(examples: Examples, topic: str, number: int, program: Running) -> bool:
    """Wait until a topic has so many messages; return False if the program waited its 3 s for a batch in vain."""
    end = time.monotonic() + 60
    while (found := _stored(examples, topic)) < number:
        printed = "".join(program.lines)
        if _TOO_SLOW in printed:
            return False
        assert "Exception" not in printed, printed[-3000:]
        assert time.monotonic() < end, f"{found} of {number} messages are stored"
        # Each look costs a second of processor, which the program needs, too.
        time.sleep(4)
    assert found == number
    return True


def _stored(examples: Examples, topic: str) -> int:
    """Return how many messages a topic has; none while it does not exist."""
    try:
        status = examples.cluster.command("topic", "show", topic, "--output", "json")
    except AssertionError:
        return 0
    return sum(map(int, re.findall(r'"messages": *(\d+)', status)))


def test_filters(examples: Examples) -> None:
    """Two of three tags; SQL over tags and a number."""
    assert sent(examples.finish("filter.TagFilterProducer")) == 60
    assert sent(examples.finish("filter.SqlFilterProducer")) == 10

    with examples.start("filter.TagFilterConsumer") as consumer:
        consumer.until(RECEIVED, 40)
        assert set(re.findall(r"TAGS=(\w+)", "".join(consumer.lines))) == {"TagA", "TagC"}
    with examples.start("filter.SqlFilterConsumer") as consumer:
        consumer.until(RECEIVED, 3)
        time.sleep(1)  # nothing else comes
        found = re.findall(r"\ba=(\d)", "".join(consumer.lines))
    assert sorted(found) == ["0", "1", "3"]


def test_transactions(examples: Examples) -> None:
    """Ten unknown transactions are asked about: one of three is committed, the others never seen."""
    with examples.start("transaction.TransactionProducer") as producer:
        producer.until(r"sendStatus=SEND_OK", 10)
        topic = examples.name("TopicTest1234")
        words = ("-g", f"watchers{examples.suffix}", "-t", topic, "-s", "*", "-f", "false")
        with examples.start("operation.Consumer", *words) as consumer:
            consumer.until(r"KEYS=(\w+)", 3)
            time.sleep(3)  # nothing else comes
            found = keys("".join(consumer.lines))
    assert sorted(found) == ["KEY1", "KEY4", "KEY7"]


def test_traces(examples: Examples) -> None:
    """Producer and consumer that trace what they do to the trace topic."""
    assert sent(examples.finish("tracemessage.TraceProducer")) == 128

    with examples.start("tracemessage.TracePushConsumer") as consumer:
        consumer.until(RECEIVED, 128)


def test_namespaces(examples: Examples) -> None:
    """Names are wrapped by the client; what is received has them bare."""
    # In some versions it does not shut its producer down, so it does not end.
    with examples.start("namespace.ProducerWithNamespace") as producer:
        producer.until(r"send success, misId is:(\w+)", 100)
    with examples.start("namespace.PushConsumerWithNamespace") as consumer:
        found = consumer.until(r"Msg topic is:(\w+)", 100)
    assert len(set(found)) == 1
    assert "%" not in found[0][0]
    with examples.start("namespace.PullConsumerWithNamespace") as consumer:
        consumer.until(r"pullStatus=FOUND")


def test_asynchronous_sends_and_oneway(examples: Examples) -> None:
    """100 callbacks; oneway where the version has it."""
    text = examples.finish("simple.AsyncProducer")

    assert len(re.findall(r"\bOK\b", text)) == 100
    if examples.has("simple.OnewayProducer"):
        assert "Exception" not in examples.finish("simple.OnewayProducer")


def test_openmessaging(examples: Examples) -> None:
    """The OpenMessaging interface over RocketMQ's client."""
    text = examples.finish("openmessaging.SimpleProducer")
    assert len(re.findall(r"message OK, msgId", text)) == 2

    with examples.start("openmessaging.SimplePushConsumer") as consumer:
        consumer.until(r"Received one message: ", 3)


def test_lite_pull(newest: Examples) -> None:
    """Subscribed and assigned, where the examples seek."""
    sent(newest.finish("quickstart.Producer"))

    with newest.start("simple.LitePullConsumerSubscribe") as consumer:
        consumer.until(MESSAGE, 1_000)
    with newest.start("simple.LitePullConsumerAssign") as consumer:
        consumer.until(MESSAGE, 200)
    # Of its second topic nobody has heard.
    newest.cluster.command("topic", "create", newest.name("TopicTest1"), "--queues", "4")
    with newest.start("simple.LitePullConsumerAssignWithSubExpression") as consumer:
        consumer.until(MESSAGE, 100)


def test_open_tracing(newest: Examples) -> None:
    """With a tracer of its own: one send, many received, one half message."""
    assert sent(newest.finish("tracemessage.OpenTracingProducer")) == 1
    with newest.start("tracemessage.OpenTracingPushConsumer") as consumer:
        consumer.until(RECEIVED, 1)
    with newest.start("tracemessage.OpenTracingTransactionProducer") as producer:
        producer.until(r"sendStatus=SEND_OK")


def test_requests(newest: Examples) -> None:
    """A request is answered by the responding consumer, to the caller and to a callback."""
    # Else the consumer would hear of it half a minute after the first request, which waits three seconds.
    topic = newest.name("RequestTopic")
    newest.cluster.command("topic", "create", topic, "--queues", "4")
    with newest.start("rpc.ResponseConsumer") as responder:
        responder.until("Consumer Started")
        # It reads what is sent from now on; its queues it gets a little later than it says so.
        time.sleep(2)
        text = newest.finish("rpc.RequestProducer")
        assert f"request to <{topic}> cost" in text, text[-3000:]
        # It waits for its callback and never ends.
        with newest.start("rpc.AsyncRequestProducer") as caller:
            caller.until(f"request to <{topic}> cost")


def test_delays_and_times(newest: Examples) -> None:
    """Delay levels, and the times of RocketMQ 5: ten messages, ten seconds later each."""
    assert sent(newest.finish("schedule.ScheduledMessageProducer")) == 100
    with newest.start("schedule.ScheduledMessageConsumer") as consumer:
        consumer.until(r"Receive message\[msgId=", 100)

    assert sent(newest.finish("schedule.TimerMessageProducer")) == 10
    with newest.start("schedule.TimerMessageConsumer") as consumer:
        late = consumer.until(r"(\d+)  ms later", 10, timeout_s=120)
    # Counted from the birth of each message; the program chooses the time before that, and its first send
    # may take the client's three seconds.
    assert all(7_000 <= int(each[0]) < 20_000 for each in late), late


def test_benchmarks(newest: Examples) -> None:
    """The load programs run against us without a failed send: plain, in batches, in transactions."""
    ns = newest.cluster.name_server
    report = ("-ri", "2000", "-n", ns)
    for program, words in (
        ("benchmark.Producer", ("-w", "8", *report)),
        ("benchmark.BatchProducer", ("-w", "4", *report)),
        ("benchmark.TransactionProducer", ("-w", "4", "-cu", "0.2", "-su", "0.2", *report)),
    ):
        with newest.start(program, *words) as load:
            load.until(r"Send TPS: *([1-9]\d*)", 2)
            failures = set(re.findall(r"Send Failed: *(\d+)", "".join(load.lines)))
        assert failures == {"0"}, program
    with newest.start("benchmark.Consumer", "-ri", "2000", "-n", ns) as load:
        load.until(r"TPS: *([1-9]\d*)", 2)


@pytest.mark.whole_suite
@pytest.mark.timeout(300)
def test_the_load_program_for_times(newest: Examples) -> None:
    """Messages for one of two seconds, two minutes after the start, are received when these are over."""
    topic = f"TimesTest{newest.suffix}"
    words = ("-n", newest.cluster.name_server, "-t", topic)
    newest.cluster.command("topic", "create", topic, "--queues", "4")
    slots = ("-tc", "2", "-st", "2", "-mt", "10")
    with newest.start("benchmark.timer.TimerProducer", *words, *slots) as producer:
        with newest.start("benchmark.timer.TimerConsumer", *words) as consumer:
            consumer.until(r"TPS: *([1-9]\d*)", 1, timeout_s=200)
        assert "Exception" not in "".join(producer.lines)


def test_every_example_is_run_or_has_a_reason(cluster: LocalCluster) -> None:
    """None is forgotten when Apache publishes another version."""
    source = Path(__file__).read_text()
    names = set()
    for version in VERSIONS:
        for path in _unpacked(version, cluster).rglob("*.class"):
            code = path.read_bytes()
            if b"([Ljava/lang/String;)V" in code and b"\x04main" in code and "$" not in path.name:
                relative = path.relative_to(cluster.directory / f"examples-{version}")
                names.add(".".join(relative.with_suffix("").parts).removeprefix(PACKAGE))

    assert {n for n in names if f'"{n}"' not in source} == set()
