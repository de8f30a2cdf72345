"""
RocketMQ's own example programs, as Apache publishes them, with our brokers.

Each is a class of the artifact ``rocketmq-example``, started by its ``main``. Only constants are replaced: the address,
the names of broker and cluster, and the names of topics and groups, so that a second run finds no messages of the first.
The output is the evidence: the number of sends with SEND_OK, and the received messages in their order.
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

# The Netty of 4.x uses internal classes that later versions of Java have closed.
_OPENED = [
    f"--add-opens=java.base/{package}=ALL-UNNAMED"
    for package in ("java.lang", "java.nio", "java.util", "sun.nio.ch", "jdk.internal.misc")
]

#: Prefixes of the names of topics and groups; the topics of the load programs belong to the broker.
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
# RocketMQ's threads continue after a failed `main`, so such a program never ends.
_DIED = 'Exception in thread "main"'
# The output of a producer that has waited 3 s for an answer, a limit that the examples do not set. A batch of 10 000
# messages takes that long if many programs share a slow machine.
_TOO_SLOW = "sendDefaultImpl call timeout"

#: Programs that need a feature which this broker does not have, with its answer.
NOT_SERVED = {
    "lmq.LMQPushPopConsumer": "POP consumption, a protocol of RocketMQ 5's proxy; answered with code 3",
    "simple.PopConsumer": "POP consumption, a protocol of RocketMQ 5's proxy; answered with code 3",
    "lmq.LMQProducer": "light queues (enableLmq is false in RocketMQ, too): stored as a plain message",
    "lmq.LMQPullConsumer": "light queues",
    "lmq.LMQPushConsumer": "light queues",
}
#: Programs that are of no use as a test.
NO_TEST = {
    "simple.AclClient": "needs the account that stands in it; test_java_access.py covers its hook",
    "simple.PullConsumer": "prints nothing",
    "simple.TestProducer": "looks for what it has sent before it can be found, and never ends",
    "simple.PullConsumerTest": "waits for a broker named like its author's computer",
    "openmessaging.SimplePullConsumer": "sends to a topic that it then does not end reading",
}


class Running:
    """A running example with all lines that it has printed."""

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
        """Wait for *count* matches and return the groups of all; the end of the block kills a program that does not end."""
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
        """Wait for the program's own end, which must be without an error; return its output."""
        end = time.monotonic() + timeout_s
        while not self._has_ended() and time.monotonic() < end:
            with self._news:
                self._news.wait(0.2)
        text = "".join(self.lines)
        code = self._process.poll()
        assert code == 0, f"exit code {code} (None: it has not ended): {text[-3000:]}"
        return text

    def _has_ended(self) -> bool:
        """Return whether no further output is expected."""
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
    """The examples of one version, with the address of a running cluster and the names of one run."""

    cluster: LocalCluster
    version: str
    classes: Path
    suffix: str = ""

    def name(self, text: str) -> str:
        """Return the replacement of a topic, a group, or a text with such names."""
        for name in NAMES:
            text = text.replace(name, name + self.suffix)
        return text

    def start(self, program: str, *words: str) -> Running:
        home = self.cluster.directory
        # Without it the clients of 4.x log to standard output, including exceptions of Netty.
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
    """One cluster for all tests, because each run has its own topics and groups."""
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
    """Return the number of acknowledged sends; *text* may contain no other result."""
    assert set(re.findall(r"sendStatus=(\w+)", text)) <= {"SEND_OK"}
    assert "Exception" not in text, text[-3000:]
    return len(re.findall(r"sendStatus=SEND_OK", text))


def keys(text: str) -> list[str]:
    return re.findall(r"KEYS=(\w+)", text)


RECEIVED = r"Receive New Messages"
MESSAGE = r"MessageExt \["


def test_quick_start(examples: Examples) -> None:
    """After 1 000 sends, push, broadcast, scheduled pull and manual pull find all messages."""
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
    """Messages of an order go to its queue, and an orderly listener gets rising offsets in each queue."""
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
    # The example's listener asks for a pause every few messages: each message comes until it is done.
    assert all(sorted(each) == each for each in offsets.values())


def test_batches(examples: Examples) -> None:
    """A small batch is sent, and 100 000 messages are split into batches of at most 1 MB."""
    topic = examples.name("BatchTest")
    # Those of 4.x neither end by themselves nor print anything.
    with examples.start("batch.SimpleBatchProducer") as small:
        assert _wait_stored(examples, topic, 3, small)
    for _ in range(3):
        before = _stored(examples, topic)
        with examples.start("batch.SplitBatchProducer") as split:
            if _wait_stored(examples, topic, before + 100_000, split):
                return
        time.sleep(4)  # the broker stores received messages even if the client has given up
    pytest.fail(f"the client gave up {_TOO_SLOW!r} three times")


def _wait_stored(examples: Examples, topic: str, number: int, program: Running) -> bool:
    """Wait until a topic has this many messages; return False if the program's wait of 3 s for a batch timed out."""
    end = time.monotonic() + 60
    while (found := _stored(examples, topic)) < number:
        printed = "".join(program.lines)
        if _TOO_SLOW in printed:
            return False
        assert "Exception" not in printed, printed[-3000:]
        assert time.monotonic() < end, f"{found} of {number} messages are stored"
        # Each look takes a second of CPU time, which the program needs, too.
        time.sleep(4)
    assert found == number
    return True


def _stored(examples: Examples, topic: str) -> int:
    """Return the number of messages of a topic; 0 while it does not exist."""
    try:
        status = examples.cluster.command("topic", "show", topic, "--output", "json")
    except AssertionError:
        return 0
    return sum(map(int, re.findall(r'"messages": *(\d+)', status)))


def test_filters(examples: Examples) -> None:
    """Two of three tags are selected; SQL selects by tags and a number."""
    assert sent(examples.finish("filter.TagFilterProducer")) == 60
    assert sent(examples.finish("filter.SqlFilterProducer")) == 10

    with examples.start("filter.TagFilterConsumer") as consumer:
        consumer.until(RECEIVED, 40)
        assert set(re.findall(r"TAGS=(\w+)", "".join(consumer.lines))) == {"TagA", "TagC"}
    with examples.start("filter.SqlFilterConsumer") as consumer:
        consumer.until(RECEIVED, 3)
        time.sleep(1)  # no other message comes
        found = re.findall(r"\ba=(\d)", "".join(consumer.lines))
    assert sorted(found) == ["0", "1", "3"]


def test_transactions(examples: Examples) -> None:
    """Ten unknown transactions are checked: a third is committed, and the others are never seen."""
    with examples.start("transaction.TransactionProducer") as producer:
        producer.until(r"sendStatus=SEND_OK", 10)
        topic = examples.name("TopicTest1234")
        words = ("-g", f"watchers{examples.suffix}", "-t", topic, "-s", "*", "-f", "false")
        with examples.start("operation.Consumer", *words) as consumer:
            consumer.until(r"KEYS=(\w+)", 3)
            time.sleep(3)  # no other message comes
            found = keys("".join(consumer.lines))
    assert sorted(found) == ["KEY1", "KEY4", "KEY7"]


def test_traces(examples: Examples) -> None:
    """Producer and consumer write traces to the trace topic."""
    assert sent(examples.finish("tracemessage.TraceProducer")) == 128

    with examples.start("tracemessage.TracePushConsumer") as consumer:
        consumer.until(RECEIVED, 128)


def test_namespaces(examples: Examples) -> None:
    """The client adds the namespace to names; received messages have the names without it."""
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
    """There are 100 callbacks, and oneway sends if the version has them."""
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
    """The consumer subscribes, or assigns queues if the examples seek."""
    sent(newest.finish("quickstart.Producer"))

    with newest.start("simple.LitePullConsumerSubscribe") as consumer:
        consumer.until(MESSAGE, 1_000)
    with newest.start("simple.LitePullConsumerAssign") as consumer:
        consumer.until(MESSAGE, 200)
    # Its second topic does not exist.
    newest.cluster.command("topic", "create", newest.name("TopicTest1"), "--queues", "4")
    with newest.start("simple.LitePullConsumerAssignWithSubExpression") as consumer:
        consumer.until(MESSAGE, 100)


def test_open_tracing(newest: Examples) -> None:
    """With its own tracer: one send, many received messages, one half message."""
    assert sent(newest.finish("tracemessage.OpenTracingProducer")) == 1
    with newest.start("tracemessage.OpenTracingPushConsumer") as consumer:
        consumer.until(RECEIVED, 1)
    with newest.start("tracemessage.OpenTracingTransactionProducer") as producer:
        producer.until(r"sendStatus=SEND_OK")


def test_requests(newest: Examples) -> None:
    """The consumer answers a request of a waiting caller, and of one with a callback."""
    # Otherwise the consumer would learn of the topic half a minute after the first request, which waits three seconds.
    topic = newest.name("RequestTopic")
    newest.cluster.command("topic", "create", topic, "--queues", "4")
    with newest.start("rpc.ResponseConsumer") as responder:
        responder.until("Consumer Started")
        # It reads only new messages, and gets its queues a little after it reports its start.
        time.sleep(2)
        text = newest.finish("rpc.RequestProducer")
        assert f"request to <{topic}> cost" in text, text[-3000:]
        # It waits for its callback and never ends.
        with newest.start("rpc.AsyncRequestProducer") as caller:
            caller.until(f"request to <{topic}> cost")


def test_delays_and_times(newest: Examples) -> None:
    """Delay levels, and the delivery times of RocketMQ 5: ten messages, each ten seconds after the former."""
    assert sent(newest.finish("schedule.ScheduledMessageProducer")) == 100
    with newest.start("schedule.ScheduledMessageConsumer") as consumer:
        consumer.until(r"Receive message\[msgId=", 100)

    assert sent(newest.finish("schedule.TimerMessageProducer")) == 10
    with newest.start("schedule.TimerMessageConsumer") as consumer:
        late = consumer.until(r"(\d+)  ms later", 10, timeout_s=120)
    # The time counts from the birth of each message; the program chooses it before that, and its first send may take
    # the client's three seconds.
    assert all(7_000 <= int(each[0]) < 20_000 for each in late), late


def test_benchmarks(newest: Examples) -> None:
    """The load programs have no failed send: plain, in batches, in transactions."""
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
    """Messages for one of two seconds, two minutes after the start, arrive after these."""
    topic = f"TimesTest{newest.suffix}"
    words = ("-n", newest.cluster.name_server, "-t", topic)
    newest.cluster.command("topic", "create", topic, "--queues", "4")
    slots = ("-tc", "2", "-st", "2", "-mt", "10")
    with newest.start("benchmark.timer.TimerProducer", *words, *slots) as producer:
        with newest.start("benchmark.timer.TimerConsumer", *words) as consumer:
            consumer.until(r"TPS: *([1-9]\d*)", 1, timeout_s=200)
        assert "Exception" not in "".join(producer.lines)


def test_every_example_is_run_or_has_a_reason(cluster: LocalCluster) -> None:
    """No example of a newer version can be forgotten."""
    source = Path(__file__).read_text()
    names = set()
    for version in VERSIONS:
        for path in _unpacked(version, cluster).rglob("*.class"):
            code = path.read_bytes()
            if b"([Ljava/lang/String;)V" in code and b"\x04main" in code and "$" not in path.name:
                relative = path.relative_to(cluster.directory / f"examples-{version}")
                names.add(".".join(relative.with_suffix("").parts).removeprefix(PACKAGE))

    assert {n for n in names if f'"{n}"' not in source} == set()
