"""
Every command of Apache's mqadmin that administrators use, in two generations and the newest version, with a busy cluster.

Each row is a command and its expected output. The rows run in order, because some inspect changes of earlier ones.
Rows of commands that are not served check that the answer gives the reason.
"""

import re
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Final

import pytest

from tests.clients.localcluster import LocalCluster
from tests.clients.mqadmin.console import Scene, busy_scene
from tests.clients.programs import Java, missing

pytestmark = [
    pytest.mark.java,
    pytest.mark.cluster,
    pytest.mark.timeout(240),
]

GENERATIONS: Final = ("4.9.8", "5.3.3", "5.5.0")


@dataclass(frozen=True)
class Row:
    """A command of the matrix.

    Attributes:
        command: its words; {fields} are those of the scene.
        prints: patterns, each of which must be found; for fields as in *command*.
        only: how the versions begin that have the command, when they are not all.
    """

    command: str
    prints: tuple[str, ...]
    only: str = ""

    @property
    def id(self) -> str:
        """The command's name, and a part that distinguishes it from others of that name."""
        return re.sub(r"[^A-Za-z0-9]+", "-", self.command.replace("{", "").replace("}", ""))


def row(command: str, *prints: str, only: str = "") -> Row:
    return Row(command, prints, only)


MEMBER: Final = r"{client}\s+127\.0\.0\.1:\d+\s+JAVA\s+V\d_\d_\d"
MESSAGE: Final = (r"Topic:\s+{topic}", r"Keys:\s+\[key-0\]", r"Queue ID:\s+{queue}")
CODE_3: Final = r"CODE: 3  DESC:  request type \d+ not supported: "
UNSIGNED: Final = r"CODE: 16  DESC: request {} changes where clients go and needs the signature"
PROOF: Final = "request code={} needs a signature of version 2"

ROWS: Final = (
    # Topics.
    row(
        "updateTopic -c clients -t made-{g} -r 6 -w 6",
        r"create topic to {broker} success",
        r"topicName=made-{g}, readQueueNums=6, writeQueueNums=6, perm=RW-",
    ),
    row(
        "updateTopic -c clients -t in-order-{g} -r 4 -w 4 -o true",
        # The topic is created; brokers write the list of its queues themselves.
        UNSIGNED.format(100),
    ),
    row("updateTopic -b {broker} -t here-{g} -r 2 -w 2", r"create topic to {broker} success"),
    row("updateTopic -c clients -t {ordered} -r 9 -w 9", r"is ordered and keeps its 4 queues"),
    row("topicList", r"(?m)^made-{g}$", r"(?m)^%RETRY%{group}$"),
    row("topicList -c", r"clients\s+{topic}\s+{group}"),
    row("topicRoute -t {topic}", r'"brokerName":"clients-0"', r'"writeQueueNums":4'),
    row("topicRoute -t {ordered}", r'"orderTopicConf":"clients-0:4"'),
    row("topicStatus -t {topic}", *(rf"clients-0\s+{queue}\s+0\s+\d+\s+20" for queue in range(4))),
    row("topicStatus -t nowhere", "CODE: 17  DESC: No topic route info .* nowhere"),
    row("topicClusterList -t {topic}", r"(?m)^clients$"),
    row("updateTopicPerm -t made-{g} -p 4 -c clients", r"update topic perm from 6 to 4"),
    row("updateTopicPerm -t made-{g} -p 4 -b {broker}", r"new perm equals to the old one"),
    row("deleteTopic -c clients -t made-{g}", r"delete topic \[made-{g}\] from NameServer success"),
    row("topicStatus -t made-{g}", "CODE: 17  DESC: No topic route info"),
    row(
        "allocateMQ -t {topic} -i 10.0.0.1,10.0.0.2", r'"10\.0\.0\.2":\[\{"brokerName":"clients-0"'
    ),
    # The cluster and its brokers.
    row("clusterList", r"clients\s+clients-0\s+0\s+{broker}\s+V4_9_8\s+[\d.]+\(0,0ms"),
    row("clusterList -m", r"clients-0\s+\d+\s+\d+\s+[1-9]\d*\s+[1-9]\d*"),
    row(
        "brokerStatus -b {broker}",
        r"brokerActive\s+: true",
        r"putTps\s+: \d+\.\d+ \d+\.\d+ \d+\.\d+",
        r"getTransferedTps\s+: \d+\.\d+ \d+\.\d+ \d+\.\d+",
        r"msgPutTotalTodayNow\s+: [1-9]",
        r"msgPutTotalYesterdayMorning\s+: 0",
        r"runtime\s+: \[ 0 days",
    ),
    row("brokerStatus -c clients", r"{broker}\s+brokerVersionDesc\s+: V4_9_8"),
    row("getBrokerConfig -b {broker}", r"brokerName\s+=  clients-0", r"fileReservedTime\s+=  \d+"),
    row(
        "updateBrokerConfig -b {broker} -k fileReservedTime -v 48", r"update broker config success"
    ),
    row("getBrokerConfig -b {broker}", r"fileReservedTime\s+=  48"),
    row(
        "updateBrokerConfig -b {broker} -k brokerName -v x", r"CODE: 1 .* follows from the cluster"
    ),
    row(
        "updateBrokerConfig -b {broker} -k sendMessageThreadPoolNums -v 16",
        "more broker groups give more",
    ),
    row("updateBrokerConfig -b {broker} -k maxMessageSize -v 0", r"of bytes from 1 to \d+"),
    row("cleanExpiredCQ -b {broker}", "success"),
    row("cleanExpiredCQ -c clients", "success"),
    row("cleanUnusedTopic -b {broker}", "success"),
    row("cleanUnusedTopic -c clients", "success"),
    row("deleteExpiredCommitLog -b {broker}", "success"),
    row("deleteExpiredCommitLog -c clients", "success"),
    row("exportMetadata -c clients -f {folder}", "metadata.json success"),
    row("exportMetadata -c clients -t -f {folder}", "topic.json success"),
    row("exportConfigs -c clients -f {folder}", "configs.json success"),
    row("exportMetrics -c clients -f {folder}", "metrics.json success"),
    # Consumer groups and clients.
    row(
        "updateSubGroup -c clients -g made-{g} -r 5",
        r"create subscription group to {broker} success",
        "retryMaxTimes=5",
    ),
    row("deleteSubGroup -c clients -g made-{g}", r"delete subscription group \[made-{g}\] from"),
    row("getConsumerConfig -g {group}", r"groupName\s+=  {group}", r"retryMaxTimes\s+=  16"),
    row("consumerProgress", r"(?m)^{group}\s+1\s+V\d_\d_\d\s+PUSH\s+CLUSTERING", r"{idle}\s+0"),
    row(
        "consumerProgress -g {group}",
        *(rf"{{topic}}\s+clients-0\s+{queue}\s+\d+\s+\d+\s+\d+" for queue in range(4)),
        r"Consume TPS: \d",
        r"Diff Total: \d",
    ),
    row("consumerProgress -g {group} -t {topic}", r"Inflight Total: \d", only="5"),
    row("consumerProgress -g {typo}", r"CODE: 17 .*%RETRY%{typo}"),
    row("consumerStatus -g {group}", r"1\s+{client}\s+V\d_\d_\d", "Rebalance OK"),
    row(
        "consumerStatus -g {group} -i {client} -s",
        r"PROP_CONSUME_TYPE\s+: CONSUME_PASSIVELY",
        r"#Consumer jstack#",
        r"ConsumeMessageThread_\S+\s+TID: \d+ STATE:",
    ),
    row("consumerConnection -g {group}", MEMBER, r"{topic}\s+\*", "ConsumeType: CONSUME_PASSIVELY"),
    row("consumerConnection -g {typo}", r"CODE: 17 .*%RETRY%{typo}"),
    row("producerConnection -g {producers} -t {topic}", r"0001\s+\S+\s+127\.0\.0\.1:\d+\s+JAVA"),
    row("producerConnection -g nobody -t {topic}", r"the producer group\[nobody\] not exist"),
    row("producer -b {broker}", r"producer group \({producers}\) instance : clientId="),
    row("brokerConsumeStats -b {broker}", r"{topic}\s+{group}\s+clients-0", r"Diff Total: \d"),
    row("statsAll -a", r"{topic}\s+{group}\s+\d+\s+[\d.]+\s+[\d.]+\s+[1-9]\d*\s+\d+"),
    row("statsAll -t {topic}", r"{topic}\s+{group}\s+\d+\s+[\d.]+\s+[\d.]+\s+[1-9]"),
    # Messages.
    row("queryMsgById -i {offset_id}", *MESSAGE, only="4"),
    row("queryMsgById -t {topic} -i {offset_id}", *MESSAGE, only="5"),
    row("queryMsgById -i {offset_id} -g {group} -d {client}", "CR_SUCCESS", only="4"),
    row("queryMsgById -t {topic} -i {offset_id} -g {group} -d {client}", "CR_SUCCESS", only="5"),
    row("queryMsgByKey -t {topic} -k key-1", r"(?m)^[0-9A-F]{32,56}\s+\d\s+\d+"),
    row("queryMsgByUniqueKey -t {topic} -i {unique_id}", *MESSAGE),
    row("queryMsgByUniqueKey -t {topic} -i {unique_id} -g {group} -d {client}", "CR_SUCCESS"),
    row("queryMsgByOffset -t {topic} -b clients-0 -i {queue} -o 0", *MESSAGE),
    row("printMsg -t {topic}", r"MSGID: {unique_id} ", "queueId=3"),
    row("printMsgByQueue -t {topic} -a clients-0 -i {queue} -p true", r"MSGID: {unique_id} "),
    row("consumeMessage -t {topic} -g tool -c 2", "Consume ok", "MSGID: "),
    row("sendMessage -t {topic} -p text -k tool-{g}", r"clients-0\s+\d\s+SEND_OK\s+[0-9A-F]+"),
    row("queryMsgByKey -t {topic} -k tool-{g}", r"(?m)^[0-9A-F]{32,56}\s+\d\s+\d+"),
    row("sendMsgStatus -b clients-0 -c 2", "sendStatus=SEND_OK"),
    row("checkMsgSendRT -t {topic} -a 5 -s 16", r"Avg RT: \d", r"clients-0\s+3\s+true"),
    row("queryCq -t {topic} -q {queue} -i 0 -c 3", r"physicOffset=\d+, physicSize=\d+", "min: 0"),
    row("queryCq -b {broker} -t {topic} -q 1 -i 0 -c 3 -g {group}", r"idx: 2"),
    row("queryMsgTraceById -i {unique_id}", r"CODE: 17 .*RMQ_SYS_TRACE_TOPIC"),
    row("queryMsgById -t %DLQ%{group} -i {dead_id}", r"Topic:\s+%DLQ%{group}", only="5"),
    row("queryMsgById -i {dead_id}", r"Topic:\s+%DLQ%{group}", only="4"),
    # Offsets.
    row("resetOffsetByTime -g {group} -t {topic} -s 0 -f true", r"clients-0\s+0\s+0"),
    row("resetOffsetByTime -g {group} -t {topic} -s -1 -f false", r"clients-0\s+0\s+\d+"),
    row("resetOffsetByTime -g {idle} -t {ordered} -s now", r"clients-0\s+3\s+0\s+0"),
    row(
        "resetOffsetByTime -g {typo} -t {topic} -s now", r"\[{typo}\] does not exist; did you mean"
    ),
    row("resetOffsetByTime -g {group} -t nowhere -s now", r"CODE: 17"),
    row("skipAccumulatedMessage -g {group} -t {topic}", r"clients-0\s+0\s+[1-9]"),
    row("cloneGroupOffset -s {group} -d copy-{g} -t {topic} -o true", "clone group offset success"),
    row("cloneGroupOffset -s {typo} -d copy-{g} -t {topic} -o true", r"CODE: 17 .*%RETRY%{typo}"),
    # Name servers.
    row("updateOrderConf -m put -t {topic} -v clients-0:3", UNSIGNED.format(100)),
    row("updateOrderConf -m put -t {ordered} -v clients-0:3", UNSIGNED.format(100)),
    row("updateOrderConf -m get -t {ordered}", r"orderConf=\[clients-0:4\]"),
    row("updateOrderConf -m put -t {ordered} -v clients-0:4", "update orderConf success"),
    row("updateOrderConf -m delete -t {ordered}", UNSIGNED.format(102)),
    row("topicRoute -t {ordered}", r'"orderTopicConf":"clients-0:4"'),
    row(
        "updateKvConfig -s space -k name -v value",
        "create or update kv config to namespace success",
    ),
    row("deleteKvConfig -s space -k name", "delete kv config from namespace success"),
    row("getNamesrvConfig", r"listenPort\s+=  \d+", "orderMessageEnable"),
    row("updateNamesrvConfig -k orderMessageEnable -v true", UNSIGNED.format(318)),
    row("wipeWritePerm -b clients-0", UNSIGNED.format(205)),
    row("addWritePerm -b clients-0", UNSIGNED.format(327)),
    row("topicRoute -t {topic}", r'"perm":6'),
    # Accounts: 4.9 has these commands, 5.x has others. Without access control only the operator makes accounts.
    row("updateAclConfig -b {broker} -a account1 -s 12345678", PROOF.format(50), only="4"),
    row("clusterAclConfigVersion -b {broker}", "plain_acl.yml", "success", only="4"),
    row("deleteAclConfig -b {broker} -a account1", PROOF.format(51), only="4"),
    row("updateGlobalWhiteAddr -b {broker} -g 10.0.0.1", PROOF.format(53), only="4"),
    row("listUser -b {broker}", CODE_3 + "accounts are changed with", only="5"),
    # Batches, and commands that only newer tools have.
    row("updateTopicList -b {broker} -f {folder}/topics.json", "success", only="5"),
    row("topicStatus -t listed", r"clients-0\s+2\s+0\s+0", only="5"),
    row("updateSubGroupList -b {broker} -f {folder}/groups.json", "success", only="5"),
    row("getConsumerConfig -g listed", r"retryMaxTimes\s+=  3", only="5"),
    row("setConsumeMode -c clients -t {topic} -g {group} -m POP", CODE_3 + "POP", only="5"),
    row(
        "haStatus -b {broker}",
        CODE_3 + "orderlymq status and /status of each replica show",
        only="5",
    ),
    row("getBrokerEpoch -b clients-0", CODE_3 + "orderlymq status shows the term", only="5"),
    row("setCommitLogReadAheadMode -b {broker} -m 0", CODE_3 + "messages are", only="5"),
    row(
        "resetMasterFlushOffset -b {broker} -o 0",
        CODE_3 + "only raft truncates the logs of followers",
        only="5",
    ),
    row("updateStaticTopic -t static-{g} -qn 4 -c clients", "new mapping data is", only="5"),
    row("topicStatus -t static-{g}", r"clients-0\s+3\s+0\s+0", only="5"),
    row("getColdDataFlowCtrInfo -b {broker}", CODE_3 + "there is no cold", only="5"),
    row("getBrokerLiteInfo -b {broker}", CODE_3 + "lite topics", only="5.5"),
)


class Stage:
    """Keeps one scene at a time, and starts it when its first row needs it."""

    def __init__(self, cluster: LocalCluster, folders: pytest.TempPathFactory) -> None:
        self._cluster = cluster
        self._folders = folders
        self._playing = ExitStack()
        self._scene: Scene | None = None

    def scene(self, version: str) -> Scene:
        if self._scene is None or self._scene.version != version:
            self.clear()
            java = Java(version)
            java.build()
            folder = self._folders.mktemp("mqadmin")
            (folder / "topics.json").write_text(
                '[{"topicName":"listed","readQueueNums":3,"writeQueueNums":3,"perm":6}]'
            )
            (folder / "groups.json").write_text('[{"groupName":"listed","retryMaxTimes":3}]')
            self._scene = self._playing.enter_context(busy_scene(self._cluster, java, folder))
        return self._scene

    def clear(self) -> None:
        self._scene = None
        self._playing.close()


@pytest.fixture(scope="module")
def stage(cluster: LocalCluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    reason = missing("java", "mvn")
    if reason:
        pytest.skip(reason)
    stage = Stage(cluster, tmp_path_factory)
    yield stage
    stage.clear()


@pytest.mark.parametrize(
    ("version", "each"),
    [
        pytest.param(version, each, id=f"{version}-{each.id}")
        for version in GENERATIONS
        for each in ROWS
        if version.startswith(each.only)
    ],
)
def test_a_command_prints_what_it_should(stage: Stage, version: str, each: Row) -> None:
    """Every pattern of the row is found in what mqadmin prints."""
    scene = stage.scene(version)
    printed = scene.console.run(*scene.words(each.command))

    for pattern in each.prints:
        assert re.search(scene.pattern(pattern), printed), f"{pattern}\n{printed}"
