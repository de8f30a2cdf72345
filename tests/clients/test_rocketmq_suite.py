"""
RocketMQ's own integration tests, as Apache publishes them, against our brokers.

They are the classes ``*IT`` of the artifact ``rocketmq-test:tests``; each runs in a JVM of its own with
our ``BaseConf``, which finds a running cluster instead of starting RocketMQ's brokers. A test
that fails here tells where our broker differs from RocketMQ. `make test-suite` runs all of them.
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

pytestmark = [pytest.mark.java, pytest.mark.cluster, pytest.mark.timeout(400)]

VERSION = "4.9.7"
PACKAGE = "org.apache.rocketmq.test."
FOLDER = Path(__file__).parent / "rocketmq" / "suite"

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
# Ten seconds and more each.
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


@dataclass
class Suite:
    """The compiled suite and the cluster that it tests."""

    cluster: LocalCluster
    classes: Path

    def run(self, name: str) -> dict[str, str]:
        """Run one test class; return by test what went wrong, empty text for nothing."""
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


def _built() -> Path:
    reason = missing("java", "mvn")
    if reason:
        pytest.skip(reason)
    run_maven(FOLDER, VERSION)
    return FOLDER / "target" / VERSION


@pytest.fixture(scope="module")
def suite(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Suite]:
    """Two groups of one replica each, as the suite has two brokers; plain and TLS on one port."""
    classes = _built()
    folder = tmp_path_factory.mktemp("suite")
    files = make_certificate(make_authority(folder), "server")
    cluster = LocalCluster(
        folder,
        groups=2,
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
    """None is forgotten when Apache publishes another version."""
    jar = _built() / "lib" / f"rocketmq-test-{VERSION}-tests.jar"
    with zipfile.ZipFile(jar) as archive:
        names = {
            name.removesuffix(".class").replace("/", ".").removeprefix(PACKAGE)
            for name in archive.namelist()
            if name.endswith("IT.class")
        }

    assert names == {*QUICK, *LONG, *NOT_FOR_US}


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "name" in metafunc.fixturenames:
        whole = metafunc.config.getoption("--whole-suite")
        metafunc.parametrize("name", (*QUICK, *LONG) if whole else QUICK)


def test_rocketmqs_own_tests_pass(suite: Suite, name: str) -> None:
    """All tests of the class, unchanged."""
    results = suite.run(name)

    assert {test: why for test, why in results.items() if why} == {}
