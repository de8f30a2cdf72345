"""
RocketMQ's own integration tests, as Apache publishes them, with our brokers.

They are the classes ``*IT`` of the artifact ``rocketmq-test:tests``; each runs in its own JVM with
our ``BaseConf``, which finds a running cluster instead of starting RocketMQ's brokers. A test
that fails here shows where our broker differs from RocketMQ. `make test-suite` runs all of them, including
those of 5.1.1, which are the same tests with a 5.x client and some that inspect RocketMQ's own broker.
"""

import json
import subprocess
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.clients.localcluster import DELAYS, LocalCluster
from tests.clients.programs import missing, run_maven
from tests.runtime.certificates import make_authority, make_certificate

pytestmark = [
    pytest.mark.java,
    pytest.mark.cluster,
    pytest.mark.timeout(400),
]

VERSION = "4.9.7"
VERSION_5 = "5.1.1"
PACKAGE = "org.apache.rocketmq.test."
FOLDER = Path(__file__).parent / "suite"

QUICK = (
    "client.consumer.broadcast.normal.BroadCastNormalMsgNotRecvIT",
    "client.consumer.broadcast.normal.BroadCastNormalMsgRecvCrashIT",
    "client.consumer.broadcast.normal.BroadCastNormalMsgRecvFailIT",
    "client.consumer.broadcast.normal.BroadCastNormalMsgTwoDiffGroupRecvIT",
    "client.consumer.broadcast.normal.NormalMsgTwoSameGroupConsumerIT",
    "client.consumer.broadcast.tag.BroadCastTwoConsumerFilterIT",
    "client.consumer.broadcast.tag.BroadCastTwoConsumerSubDiffTagIT",
    "client.consumer.broadcast.tag.BroadCastTwoConsumerSubTagIT",
    "client.consumer.filter.SqlFilterIT",
    "client.consumer.tag.TagMessageWithMulConsumerIT",
    "client.consumer.topic.MulConsumerMulTopicIT",
    "client.producer.async.AsyncSendExceptionIT",
    "client.producer.async.AsyncSendWithMessageQueueIT",
    "client.producer.async.AsyncSendWithMessageQueueSelectorIT",
    "client.producer.async.AsyncSendWithOnlySendCallBackIT",
    "client.producer.batch.BatchSendIT",
    "client.producer.exception.msg.ChinaPropIT",
    "client.producer.exception.msg.MessageExceptionIT",
    "client.producer.exception.msg.MessageUserPropIT",
    "client.producer.exception.producer.ProducerGroupAndInstanceNameValidityIT",
    "client.producer.oneway.OneWaySendExceptionIT",
    "client.producer.oneway.OneWaySendIT",
    "client.producer.oneway.OneWaySendWithMQIT",
    "client.producer.oneway.OneWaySendWithSelectorIT",
    "client.producer.order.OrderMsgDynamicRebalanceIT",
    "client.producer.order.OrderMsgIT",
    "client.producer.order.OrderMsgWithTagIT",
    "client.producer.querymsg.QueryMsgByIdExceptionIT",
    "client.producer.querymsg.QueryMsgByIdIT",
    "client.producer.querymsg.QueryMsgByKeyIT",
    "client.producer.transaction.TransactionalMsgIT",
    "smoke.NormalMessageSendAndRecvIT",
    "tls.TLS_IT",
    "tls.TLS_Mix2_IT",
    "tls.TLS_Mix_IT",
)
# Each takes ten seconds or more.
LONG = (
    "client.consumer.balance.NormalMsgDynamicBalanceIT",
    "client.consumer.balance.NormalMsgStaticBalanceIT",
    "client.consumer.broadcast.normal.BroadCastNormalMsgRecvStartLaterIT",
    "client.consumer.cluster.DynamicAddAndCrashIT",
    "client.consumer.cluster.DynamicAddConsumerIT",
    "client.consumer.cluster.DynamicCrashConsumerIT",
    "client.consumer.tag.MulTagSubIT",
    "client.consumer.tag.TagMessageWith1ConsumerIT",
    "client.consumer.tag.TagMessageWithSameGroupConsumerIT",
    "client.consumer.topic.OneConsumerMulTopicIT",
    "client.producer.order.OrderMsgRebalanceIT",
    "delay.NormalMsgDelayIT",
)
NOT_FOR_US = {
    "base.dledger.DLedgerProduceAndConsumeIT": (
        "starts a RocketMQ broker with DLedger in its own process and looks at that broker's store"
    ),
    "client.consumer.broadcast.BaseBroadCastIT": "holds no test: what the other classes extend",
    "client.consumer.broadcast.order.OrderMsgBroadCastIT": "is marked @Ignore by its authors",
}

#: Classes of 5.1.1 that need only a client.
FIVE = (
    "client.consumer.balance.NormalMsgDynamicBalanceIT",
    "client.consumer.balance.NormalMsgStaticBalanceIT",
    "client.consumer.broadcast.normal.BroadcastNormalMsgNotReceiveIT",
    "client.consumer.broadcast.normal.BroadcastNormalMsgRecvCrashIT",
    "client.consumer.broadcast.normal.BroadcastNormalMsgRecvStartLaterIT",
    "client.consumer.broadcast.normal.BroadcastNormalMsgTwoDiffGroupRecvIT",
    "client.consumer.broadcast.normal.NormalMsgTwoSameGroupConsumerIT",
    "client.consumer.broadcast.tag.BroadcastTwoConsumerFilterIT",
    "client.consumer.broadcast.tag.BroadcastTwoConsumerSubDiffTagIT",
    "client.consumer.broadcast.tag.BroadcastTwoConsumerSubTagIT",
    "client.consumer.cluster.DynamicAddAndCrashIT",
    "client.consumer.cluster.DynamicAddConsumerIT",
    "client.consumer.cluster.DynamicCrashConsumerIT",
    "client.consumer.filter.SqlFilterIT",
    "client.consumer.tag.MulTagSubIT",
    "client.consumer.tag.TagMessageWith1ConsumerIT",
    "client.consumer.tag.TagMessageWithMulConsumerIT",
    "client.consumer.tag.TagMessageWithSameGroupConsumerIT",
    "client.consumer.topic.MulConsumerMulTopicIT",
    "client.consumer.topic.OneConsumerMulTopicIT",
    "client.producer.async.AsyncSendExceptionIT",
    "client.producer.async.AsyncSendWithMessageQueueIT",
    "client.producer.async.AsyncSendWithMessageQueueSelectorIT",
    "client.producer.async.AsyncSendWithOnlySendCallBackIT",
    "client.producer.exception.msg.ChinaPropIT",
    "client.producer.exception.msg.MessageExceptionIT",
    "client.producer.exception.msg.MessageUserPropIT",
    "client.producer.exception.producer.ProducerGroupAndInstanceNameValidityIT",
    "client.producer.oneway.OneWaySendExceptionIT",
    "client.producer.oneway.OneWaySendIT",
    "client.producer.oneway.OneWaySendWithMQIT",
    "client.producer.oneway.OneWaySendWithSelectorIT",
    "client.producer.order.OrderMsgDynamicRebalanceIT",
    "client.producer.order.OrderMsgIT",
    "client.producer.order.OrderMsgRebalanceIT",
    "client.producer.order.OrderMsgWithTagIT",
    "client.producer.querymsg.QueryMsgByIdExceptionIT",
    "client.producer.querymsg.QueryMsgByIdIT",
    "client.producer.querymsg.QueryMsgByKeyIT",
    "client.producer.transaction.TransactionalMsgIT",
    "delay.NormalMsgDelayIT",
    "tls.TlsIT",
    "tls.TlsMix2IT",
    "tls.TlsMixIT",
)
_INSIDE = "looks into the brokers that its BaseConf has started in its own process"
_POP = "POP consumption, which is answered with code 3"
_PROXY = "starts a proxy and speaks gRPC with it"
NOT_FOR_US_5 = {
    "base.dledger.DLedgerProduceAndConsumeIT": _INSIDE,
    "client.consumer.broadcast.normal.BroadcastNormalMsgRecvFailIT": "its one test is marked @Ignore by its authors",
    "client.consumer.broadcast.order.OrderMsgBroadcastIT": "is marked @Ignore by its authors",
    "client.producer.batch.BatchSendIT": _INSIDE,
    "offset.LagCalculationIT": _INSIDE,
    "offset.OffsetNotFoundIT": _INSIDE,
    "offset.OffsetResetForPopIT": _POP,
    "offset.OffsetResetIT": _INSIDE,
    "smoke.NormalMessageSendAndRecvIT": _INSIDE,
    "statictopic.StaticTopicIT": "static topics, whose queues move between brokers; here each queue stays with its group",
}
#: Whole folders of 5.1.1.
FOLDERS_NOT_FOR_US_5 = {
    "client.consumer.pop.": _POP,
    "container.": "starts brokers of RocketMQ in containers of its own process",
    "grpc.": _PROXY,
    "retry.": _POP,
}


@dataclass
class Suite:
    """The compiled suite and the cluster under test."""

    cluster: LocalCluster
    classes: Path

    def run(self, name: str) -> dict[str, str]:
        """Run one test class; return the error of each test, or an empty text."""
        home = self.cluster.directory
        result = subprocess.run(
            [
                "java",
                "-Xmx256m",
                "-XX:TieredStopAtLevel=1",
                f"-Duser.home={home}",
                f"-Drocketmq.client.logRoot={home}",
                "-Drocketmq.client.logLevel=ERROR",
                f"-Dsuite.ns={self.cluster.name_server}",
                "-Dsuite.cluster=clients",
                "-cp",
                f"{self.classes}/classes:{self.classes}/lib/*",
                "io.orderlymq.suite.Main",
                PACKAGE + name,
            ],
            capture_output=True,
            text=True,
            timeout=380,
            check=False,
        )
        events = [json.loads(line) for line in result.stdout.splitlines() if line.startswith("{")]
        assert events, f"no test ran: {result.stdout[-2000:]}{result.stderr[-2000:]}"
        return {e["test"]: "" if e["event"] == "passed" else e["why"] for e in events}


def _built(version: str) -> Path:
    reason = missing("java", "mvn")
    if reason:
        pytest.skip(reason)
    run_maven(FOLDER, version)
    return FOLDER / "target" / version


@pytest.fixture(scope="module")
def suite(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Suite]:
    """A cluster with as many groups of one replica as the suite has brokers; plain and TLS on one port."""
    version: str = request.param
    classes = _built(version)
    folder = tmp_path_factory.mktemp("suite")
    files = make_certificate(make_authority(folder), "server")
    cluster = LocalCluster(
        folder,
        groups=2 if version == VERSION else 3,
        replicas=1,
        delays=DELAYS,
        tls=json.dumps(
            {
                "mode": "Permissive",
                "certificateFile": str(files.certificate),
                "keyFile": str(files.key),
            }
        ),
    )
    cluster.up()
    yield Suite(cluster, classes)
    cluster.down()


def test_every_class_of_the_suite_is_run_or_has_a_reason() -> None:
    """No test class of a newer version can be forgotten."""
    left_out = tuple(FOLDERS_NOT_FOR_US_5)

    assert _classes(VERSION) == {*QUICK, *LONG, *NOT_FOR_US}
    assert {name for name in _classes(VERSION_5) if not name.startswith(left_out)} == {
        *FIVE,
        *NOT_FOR_US_5,
    }


def _classes(version: str) -> set[str]:
    """Return the test classes of a version."""
    jar = _built(version) / "lib" / f"rocketmq-test-{version}-tests.jar"
    with zipfile.ZipFile(jar) as archive:
        return {
            name.removesuffix(".class").replace("/", ".").removeprefix(PACKAGE)
            for name in archive.namelist()
            if name.endswith("IT.class")
        }


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "name" in metafunc.fixturenames:
        runs = [(VERSION, name) for name in QUICK]
        if metafunc.config.getoption("--whole-suite"):
            runs += [(VERSION, name) for name in LONG] + [(VERSION_5, name) for name in FIVE]
        metafunc.parametrize(("suite", "name"), runs, indirect=["suite"])


def test_rocketmqs_own_tests_pass(suite: Suite, name: str) -> None:
    """All tests of the class, unchanged."""
    results = suite.run(name)

    assert {test: why for test, why in results.items() if why} == {}
