"""
docs/reference/protocol.md lists who serves which request code; a test compares it with what the code serves.

`python -m tests.broker.test_protocol_docs` writes the page again.
"""

from pathlib import Path
from typing import Final

from orderlymq_broker.processors.dispatch import BrokerCore
from orderlymq_broker.state.broker import BrokerState
from orderlymq_nameserver.kv import KvTable
from orderlymq_nameserver.processor import NameServerCore
from orderlymq_protocol.codes import RequestCode
from orderlymq_protocol.unsupported import REASONS
from tests.broker.processors.driver import settings
from tests.broker.store.memory import MemoryStore

PAGE: Final = Path(__file__).parents[2] / "docs" / "reference" / "protocol.md"

# Answered by the broker's process before its core is asked.
PROCESS_CODES: Final = {
    RequestCode.QUERY_ASSIGNMENT,
    RequestCode.ORDERLYMQ_PING,
    RequestCode.ORDERLYMQ_TRANSFER_LEADERSHIP,
    RequestCode.ORDERLYMQ_CHANGE_MEMBERSHIP,
    RequestCode.ORDERLYMQ_BACKUP_BEGIN,
    RequestCode.ORDERLYMQ_BACKUP_READ,
    RequestCode.ORDERLYMQ_BACKUP_END,
}
# Requests of the broker to clients, over the connection the client has opened.
TO_CLIENTS: Final = {
    RequestCode.NOTIFY_CONSUMER_IDS_CHANGED: "oneway, to the members of a group that changed",
    RequestCode.RESET_CONSUMER_CLIENT_OFFSET: "oneway, to the members of a group that is reset (222)",
    RequestCode.GET_CONSUMER_STATUS_FROM_CLIENT: "to each member of the group (223)",
    RequestCode.GET_CONSUMER_RUNNING_INFO: "",
    RequestCode.CONSUME_MESSAGE_DIRECTLY: "",
    RequestCode.CHECK_TRANSACTION_STATE: "oneway, to one live producer of the group, in turn",
    RequestCode.PUSH_REPLY_MESSAGE_TO_CLIENT: "to the client that asked, from 324 and 325",
}
_ALL_OR_NONE: Final = "all or none as far as they are judged when they come; where the log changes that for one, the answer names what was changed"
_LANES: Final = "[lanes](../explanation/lanes.md#wire-contract)"
REMARKS: Final = {
    RequestCode.SEND_MESSAGE_V2: (
        "the property `OMQ_BODY_CRC` (our own) is written by the SDK with a body that it compresses: its checksums before and after, "
        "see guarantees, clause 8"
    ),
    RequestCode.SEND_BATCH_MESSAGE: (
        "one queue offset for the first message, the others follow; when a part was stored before, `places` in the answer is "
        "`queueId:queueOffset` of each message, joined by commas (our own)"
    ),
    RequestCode.ORDERLYMQ_APPEND_COPIES: (
        "our own: stored records of another cluster's queue, appended at the offsets that they have there or not at all (20515: the queue "
        "ends elsewhere); with `begins` a queue that never had a message begins where they do, and the topic may be read-only"
    ),
    RequestCode.PULL_MESSAGE: "long polling; filters by tags and SQL92",
    RequestCode.LITE_PULL_MESSAGE: "as 11",
    RequestCode.QUERY_CONSUMER_OFFSET: "a well-formed question that cannot be answered closes the connection, but of Java since 5.1; for a group without an offset 0 while the queue keeps message 0, else 22",
    RequestCode.UPDATE_CONSUMER_OFFSET: "moves forward only, but for pull consumers; in ordered groups the holder's alone; a tool that waits for the answer resets",
    RequestCode.UPDATE_AND_CREATE_TOPIC: (
        "an ordered topic keeps its queues and stays ordered; `message.type=FIFO` makes one; with `omqNew` (our own) a topic that is there is left as it is"
    ),
    RequestCode.UPDATE_AND_CREATE_TOPIC_LIST: _ALL_OR_NONE,
    RequestCode.UPDATE_AND_CREATE_STATIC_TOPIC: (
        "creates a topic with the queues that the header counts for this group; as all topics here, it keeps them: "
        "a topic that exists with other numbers answers 1"
    ),
    RequestCode.DELETE_TOPIC_IN_NAMESRV: "with a secret of the cluster: signed, but for a topic that no broker has, or whose brokers report within 2.5 s that it is gone; a topic of a group stays where brokers register it",
    RequestCode.UPDATE_BROKER_CONFIG: (
        "through the log, so a fail-over keeps it; which keys: [settings](settings.md); others answer 1"
    ),
    RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST: _ALL_OR_NONE,
    RequestCode.GET_BROKER_RUNTIME_INFO: "keys of 4.9 and 5.x; what does not exist here is 0",
    RequestCode.LOCK_BATCH_MQ: "`leaseMillis` in the body, `epochs` in the answer are our own; a replica that does not lead answers 1",
    RequestCode.END_TRANSACTION: (
        "one visible copy, however often it comes; a `msgId` that is not the half's is refused; with an answer when it is not oneway; a replica "
        "that does not lead answers 11"
    ),
    RequestCode.RESUME_CHECK_HALF_MESSAGE: (
        "by the offset id of a half message, or of its copy in `TRANS_CHECK_MAX_TIME_TOPIC`"
    ),
    RequestCode.SEND_REPLY_MESSAGE: "stored, and pushed with 326; the code reports the push",
    RequestCode.SEND_REPLY_MESSAGE_V2: "as 324",
    RequestCode.QUERY_ASSIGNMENT: (
        "what an operator has decided (20507), else strategies `AVG` and `AVG_BY_CIRCLE`; over all groups; null for who is no member"
    ),
    RequestCode.GET_TOPIC_STATS_INFO: "every queue, empty ones too",
    RequestCode.CONSUMER_SEND_MSG_BACK: (
        "a message whose properties leave no room for those of a retry (some 500 of 32,767 bytes) is refused each time: its "
        "client keeps it and tries it again itself every 5 s, until it succeeds or asks for a dead letter (delayLevel -1); so is a retry "
        "of a group with more than 120 characters, and a dead letter of one with more than 122, whose topic would have too long a name; "
        "Go's client, which would take any refusal for success and skip the message, gets no answer instead"
    ),
    RequestCode.GET_CONSUMER_LIST_BY_GROUP: (
        "Go's client, which would take any refusal for an empty list and leave all its queues, gets no answer instead"
    ),
    RequestCode.DELETE_SUBSCRIPTIONGROUP: (
        "offsets stay unless `removeOffset` or `cleanOffset`; the topics `%RETRY%group` and `%DLQ%group` always stay, and "
        "`mqadmin deleteSubGroup -c` deletes them with 215; 20517 while a member holds a queue lock or has a lane in hand: stop the consumers first"
    ),
    RequestCode.GET_CONSUME_STATS: (
        "without topic: all topics with offsets, and the retry topic; `pullOffset` is where the last answer to a pull "
        "let the group go on, while it has members; who sends `orderlymq` also gets `backlog`, which is what a group by key has not consumed"
    ),
    RequestCode.INVOKE_BROKER_TO_RESET_OFFSET: "206 while nobody is online, unless `queueId` names a queue; a body (ours) names exactly the offsets",
    RequestCode.INVOKE_BROKER_TO_GET_CONSUMER_STATUS: "asks the members with 221",
    RequestCode.CLEAN_EXPIRED_CONSUMEQUEUE: "retention looks immediately",
    RequestCode.DELETE_EXPIRED_COMMITLOG: "retention looks immediately",
    RequestCode.CLEAN_UNUSED_TOPIC: "nothing is ever left over",
    RequestCode.GET_CONSUMER_RUNNING_INFO: "passed on to the client, whose answer is returned",
    RequestCode.CONSUME_MESSAGE_DIRECTLY: "passed on to the client with the message",
    RequestCode.VIEW_BROKER_STATS_DATA: (
        "`TOPIC_PUT_NUMS`, `TOPIC_PUT_SIZE`, `GROUP_GET_NUMS` (by committed offsets), `GROUP_GET_SIZE` (as sent to consumers), "
        "`SNDBCK_PUT_NUMS`, `BROKER_PUT_NUMS`, `BROKER_GET_NUMS`; others answer 1"
    ),
    RequestCode.CLONE_GROUP_OFFSET: "while the receiving group is offline",
    RequestCode.ORDERLYMQ_GROUP_STATUS: "our own: the replicas of the group and the last snapshot of each, as JSON",
    RequestCode.ORDERLYMQ_LOCK_TABLE: "our own: holders and epochs of an ordered group's queues",
    RequestCode.ORDERLYMQ_CLIENT_DEAD: "our own: a client is proven dead, its locks are free",
    RequestCode.ORDERLYMQ_CHANGE_QUEUES: (
        "our own: `action` fence, abort, switch or publish of an ordered topic's expansion, with "
        "`operatorToken`"
    ),
    RequestCode.ORDERLYMQ_QUEUE_EXPANSION: (
        "our own: phase, barriers and blockers of expansions, where (`grownBarriers`) and since when the present queue list "
        "begins, the same of lists before (`earlierGrowths`), and the ids of topics, as JSON"
    ),
    RequestCode.ORDERLYMQ_SET_ASSIGNMENT: (
        "our own: which member takes which queue, for 400; or only notify the group"
    ),
    RequestCode.ORDERLYMQ_GROUP_MEMBERS: (
        "our own: members with their subscriptions, and what was decided with 20507; without `consumerGroup` id and address of all members"
    ),
    RequestCode.ORDERLYMQ_HOLD_KEY: (
        "our own: what becomes of a dead letter of an ordered group and of what follows it"
    ),
    RequestCode.ORDERLYMQ_PARKED_KEYS: "our own: the parked keys and held lanes of a group, as JSON",
    RequestCode.ORDERLYMQ_RELEASE_KEY: "our own: releases a parked key, or the lanes of a key: `action` retry or skip; with `queueId` and `firstOffset` only what stands there",
    RequestCode.ORDERLYMQ_FETCH_LANES: f"our own: {_LANES} of a topic over all its queues for a member; held until there is one",
    RequestCode.ORDERLYMQ_COMPLETE_LANES: f"our own: what became of attempts at {_LANES}: done, renew, retry or release, as JSON",
    RequestCode.ORDERLYMQ_LANES: f"our own: {_LANES} of a group in figures, and those in trouble or of a `key`, as JSON",
    RequestCode.ORDERLYMQ_PING: "our own: 0 as soon as the process reads it, whatever its disk and its group do",
    RequestCode.ORDERLYMQ_TRANSFER_LEADERSHIP: "our own",
    RequestCode.ORDERLYMQ_CHANGE_MEMBERSHIP: "our own: add, promote or remove a replica",
    RequestCode.ORDERLYMQ_BACKUP_BEGIN: (
        "our own: the leader makes a copy of its store, or describes again the one that it has made for the same `creation` and of which "
        "nothing was read; `session`, position and files with size and digest of their end, as JSON"
    ),
    RequestCode.ORDERLYMQ_BACKUP_READ: (
        "our own: `size` bytes, 1 MiB at most, from `offset` of `file` under `session`, each piece of a table once; "
        "with `unchanged` only while no topic has grown since; `checksum` is CRC-32 of the body"
    ),
    RequestCode.ORDERLYMQ_BACKUP_END: (
        "our own: the copy of `session` is deleted; so it is after a minute without 20521, and when the disk is nearly full"
    ),
}

_HEAD: Final = """\
# Request codes

Which requests of the RocketMQ remoting protocol are served, and by whom. The names are RocketMQ's
(`RequestCode`); numbers from 20500 to 20522 are our own and are spoken between our processes only. A code that
nobody serves is answered with 3, `REQUEST_CODE_NOT_SUPPORTED`, on which clients fall back immediately, and with the reason.

Codes with a broker beside them are answered by the leader of a group. A replica that does not lead answers tables
that are the same everywhere, refuses changes with code 1 and a remark that names the leader's address, and treats
sends, pulls and offset queries as clients need it in a fail-over.

A change of topics, consumer groups, accounts, settings, offsets, members or leaders (15, 17, 18, 25, 50, 51, 53, 200, 207, 215, 225, 513, 20502 to 20505,
20507, 20511, 20520 to 20522) may name the token of an operator in the field `operatorToken`. It is refused with code 1 when a greater one is known
([a former operator](../explanation/guarantees.md#6-acknowledged-is-kept)). With the field it needs [a signature of version 2](../howto/security.md), where the cluster has an
operator's account or access control. Without the field all but 20502, 20505 and 20507 are served as ever. Name servers read it in 100 and 102
that the cluster has signed.

This page is generated: `python -m tests.broker.test_protocol_docs`.

| code | name | served by | remark |
| ---: | --- | --- | --- |
"""
_NOBODY: Final = "nobody: answers 3"


def broker_codes() -> set[int]:
    store = MemoryStore()
    core = BrokerCore(settings(), BrokerState(store), store)
    return {*core.codes, *PROCESS_CODES}


def name_server_codes() -> set[int]:
    return set(NameServerCore(KvTable({}), expiry_ms=1).codes)


def served_by(code: RequestCode) -> str:
    servers = []
    if code in name_server_codes():
        servers.append("name server")
    if code in broker_codes():
        servers.append("broker")
    if code in TO_CLIENTS:
        servers.append("client")
    return ", ".join(servers) or _NOBODY


def render() -> str:
    rows = []
    for code in sorted(RequestCode):
        remark = REMARKS.get(code) or TO_CLIENTS.get(code) or REASONS.get(code, "")
        rows.append(f"| {code.value} | `{code.name}` | {served_by(code)} | {remark} |\n")
    return _HEAD + "".join(rows)


def test_the_page_of_request_codes_lists_what_is_served() -> None:
    """Every code, and who answers it, is in docs/reference/protocol.md as the code has it."""
    assert PAGE.read_text() == render(), "run python -m tests.broker.test_protocol_docs"


def test_every_code_of_our_own_is_explained() -> None:
    """No other page of the field does."""
    ours = {code for code in RequestCode if code.name.startswith("ORDERLYMQ_")}

    assert {code for code in ours if not REMARKS.get(code, "").startswith("our own")} == set()


def test_every_code_that_is_served_has_a_name() -> None:
    """No number is served that the protocol's table does not know."""
    assert broker_codes() | name_server_codes() <= {code.value for code in RequestCode}


def test_no_remark_speaks_of_what_is_not_served() -> None:
    """A remark stands beside a code that somebody serves, or says that it is not served yet."""
    assert not {code for code in RequestCode if served_by(code) != _NOBODY} & set(REASONS)
    idle = {code for code in REMARKS if served_by(code) == _NOBODY}
    assert all("not served" in REMARKS[code] for code in idle)


if __name__ == "__main__":
    PAGE.write_text(render())
