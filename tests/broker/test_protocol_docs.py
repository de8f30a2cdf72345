"""
docs/reference/protocol.md lists the request codes and who serves them; a test compares it with the code.

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

# The broker's process answers these itself, before its core is asked.
PROCESS_CODES: Final = {
    RequestCode.QUERY_ASSIGNMENT,
    RequestCode.ORDERLYMQ_PING,
    RequestCode.ORDERLYMQ_TRANSFER_LEADERSHIP,
    RequestCode.ORDERLYMQ_CHANGE_MEMBERSHIP,
    RequestCode.ORDERLYMQ_BACKUP_BEGIN,
    RequestCode.ORDERLYMQ_BACKUP_READ,
    RequestCode.ORDERLYMQ_BACKUP_END,
}
# Requests that the broker sends to clients, over the connection that the client has opened.
TO_CLIENTS: Final = {
    RequestCode.NOTIFY_CONSUMER_IDS_CHANGED: "oneway, to the members of a consumer group when its members change",
    RequestCode.RESET_CONSUMER_CLIENT_OFFSET: "oneway, to the members of a consumer group whose offsets are reset (222)",
    RequestCode.GET_CONSUMER_STATUS_FROM_CLIENT: "to each member of the consumer group (223)",
    RequestCode.GET_CONSUMER_RUNNING_INFO: "",
    RequestCode.CONSUME_MESSAGE_DIRECTLY: "",
    RequestCode.CHECK_TRANSACTION_STATE: "oneway, to the live producers of the group in turn, one per check",
    RequestCode.PUSH_REPLY_MESSAGE_TO_CLIENT: "to the client that sent the request; caused by 324 and 325",
}
_ALL_OR_NONE: Final = "changes nothing if one of them fails the checks on arrival; if an earlier entry of the log makes one fail later, the answer names those that were changed"
_LANES: Final = "[lanes](../explanation/lanes.md#wire-contract)"
REMARKS: Final = {
    RequestCode.SEND_MESSAGE_V2: (
        "the SDK adds the property `OMQ_BODY_CRC` (our own) to a body that it compresses: the checksums before and after the compression, "
        "see guarantees, clause 8"
    ),
    RequestCode.SEND_BATCH_MESSAGE: (
        "the answer has the queue offset of the first message, and the others follow it; if a part was stored before, `places` in the answer "
        "(our own) has `queueId:queueOffset` of each message, joined by commas"
    ),
    RequestCode.ORDERLYMQ_APPEND_COPIES: (
        "our own: appends stored records of another cluster's queue at the same offsets, or none of them (code 20515: the queue ends at another "
        "offset); with `begins`, a queue that never had a message begins at their offset; the topic may be read-only"
    ),
    RequestCode.PULL_MESSAGE: "long polling; filters by tags and SQL92",
    RequestCode.LITE_PULL_MESSAGE: "like 11",
    RequestCode.QUERY_CONSUMER_OFFSET: "if the broker cannot answer a well-formed query, it closes the connection, except for Java clients since 5.1; for a group without an offset the answer is 0 while the queue keeps message 0, else code 22",
    RequestCode.UPDATE_CONSUMER_OFFSET: "moves an offset forward only, except for pull consumers; in ordered groups only the holder of the queue lock may commit; a tool that waits for the answer resets the offset if the group has no members",
    RequestCode.UPDATE_AND_CREATE_TOPIC: (
        "an ordered topic keeps its queues and stays ordered; `message.type=FIFO` makes a topic ordered; with `omqNew` (our own) an existing topic stays unchanged"
    ),
    RequestCode.UPDATE_AND_CREATE_TOPIC_LIST: _ALL_OR_NONE,
    RequestCode.UPDATE_AND_CREATE_STATIC_TOPIC: (
        "creates a topic with the number of queues that the header gives for this broker group; the topic keeps them, as all topics here; "
        "if the topic exists with other numbers, the answer is 1"
    ),
    RequestCode.DELETE_TOPIC_IN_NAMESRV: "if the cluster has a secret, the request must be signed, unless no broker has the topic or its brokers report within 2.5 s that it is gone; a topic of a consumer group stays if brokers register it",
    RequestCode.UPDATE_BROKER_CONFIG: (
        "goes through the log, so the value survives a fail-over; [settings](settings.md) lists the keys; other keys get code 1"
    ),
    RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST: _ALL_OR_NONE,
    RequestCode.GET_BROKER_RUNTIME_INFO: "has the keys of 4.9 and 5.x; a figure that does not exist here is 0",
    RequestCode.LOCK_BATCH_MQ: "`leaseMillis` in the body and `epochs` in the answer are our own; a replica that does not lead answers 1",
    RequestCode.END_TRANSACTION: (
        "makes one visible copy, even if the request is repeated; a `msgId` that is not that of the half message is refused; answered if it is not oneway; a replica "
        "that does not lead answers 11"
    ),
    RequestCode.RESUME_CHECK_HALF_MESSAGE: (
        "takes the offset id of a half message, or of its copy in `TRANS_CHECK_MAX_TIME_TOPIC`"
    ),
    RequestCode.SEND_REPLY_MESSAGE: "the reply is stored and pushed with 326; the code of the answer reports the push",
    RequestCode.SEND_REPLY_MESSAGE_V2: "like 324",
    RequestCode.QUERY_ASSIGNMENT: (
        "the assignment that an operator has decided (20507), else by the strategies `AVG` and `AVG_BY_CIRCLE`; over all broker groups; null for a client that is not a member"
    ),
    RequestCode.GET_TOPIC_STATS_INFO: "all queues, including empty ones",
    RequestCode.CONSUMER_SEND_MSG_BACK: (
        "a message is refused each time if its properties leave no room for those of a retry (about 500 of 32,767 bytes): the "
        "client keeps it and tries it again itself every 5 s, until it succeeds or asks for a dead letter (delayLevel -1); a retry is also refused "
        "if the group's name has more than 120 characters, and a dead letter if it has more than 122, because the topic's name would be too long; "
        "Go's client takes any refusal for success and would skip the message, so it gets no answer"
    ),
    RequestCode.GET_CONSUMER_LIST_BY_GROUP: (
        "Go's client takes any refusal for an empty list and would give up all its queues, so it gets no answer instead of a refusal"
    ),
    RequestCode.DELETE_SUBSCRIPTIONGROUP: (
        "offsets stay unless `removeOffset` or `cleanOffset` is set; the topics `%RETRY%group` and `%DLQ%group` always stay, and "
        "`mqadmin deleteSubGroup -c` deletes them with 215; refused with 20517 while a member holds a queue lock or works on a lane: stop the consumers first"
    ),
    RequestCode.GET_CONSUME_STATS: (
        "without a topic: all topics with offsets, and the retry topic; while the group has members, `pullOffset` is the next offset after its last "
        "answered pull; a request with `orderlymq` also gets `backlog`, the number of messages that a group by key has not consumed"
    ),
    RequestCode.INVOKE_BROKER_TO_RESET_OFFSET: "code 206 if no member is online, unless `queueId` names a queue; a body (our own) names the exact offsets",
    RequestCode.INVOKE_BROKER_TO_GET_CONSUMER_STATUS: "the broker asks the members with 221",
    RequestCode.CLEAN_EXPIRED_CONSUMEQUEUE: "retention runs immediately",
    RequestCode.DELETE_EXPIRED_COMMITLOG: "retention runs immediately",
    RequestCode.CLEAN_UNUSED_TOPIC: "does nothing, because a deleted topic leaves nothing behind",
    RequestCode.GET_CONSUMER_RUNNING_INFO: "forwarded to the client, whose answer is returned",
    RequestCode.CONSUME_MESSAGE_DIRECTLY: "forwarded to the client with the message",
    RequestCode.VIEW_BROKER_STATS_DATA: (
        "`TOPIC_PUT_NUMS`, `TOPIC_PUT_SIZE`, `GROUP_GET_NUMS` (by committed offsets), `GROUP_GET_SIZE` (as sent to consumers), "
        "`SNDBCK_PUT_NUMS`, `BROKER_PUT_NUMS`, `BROKER_GET_NUMS`; other names get code 1"
    ),
    RequestCode.CLONE_GROUP_OFFSET: "only while the receiving group has no members online",
    RequestCode.ORDERLYMQ_GROUP_STATUS: "our own: the replicas of the broker group and the last snapshot of each, as JSON",
    RequestCode.ORDERLYMQ_LOCK_TABLE: "our own: the lock holders and epochs of an ordered group's queues",
    RequestCode.ORDERLYMQ_CLIENT_DEAD: "our own: reports that a client is proven dead; its locks are released",
    RequestCode.ORDERLYMQ_CHANGE_QUEUES: (
        "our own: a step of the expansion of an ordered topic: `action` is fence, abort, switch or publish; needs "
        "`operatorToken`"
    ),
    RequestCode.ORDERLYMQ_QUEUE_EXPANSION: (
        "our own, as JSON: phase, barriers and blockers of expansions; the offsets (`grownBarriers`) and the time at which the present queue "
        "list begins; the same of earlier lists (`earlierGrowths`); the ids of topics"
    ),
    RequestCode.ORDERLYMQ_SET_ASSIGNMENT: (
        "our own: sets which member takes which queue, for 400, or only notifies the group"
    ),
    RequestCode.ORDERLYMQ_GROUP_MEMBERS: (
        "our own: the members with their subscriptions, and the decision of 20507; without `consumerGroup`, the id and address of all members"
    ),
    RequestCode.ORDERLYMQ_HOLD_KEY: (
        "our own: asks what happens to a dead letter of an ordered group and to the messages after it"
    ),
    RequestCode.ORDERLYMQ_PARKED_KEYS: "our own: the parked keys and held lanes of a group, as JSON",
    RequestCode.ORDERLYMQ_RELEASE_KEY: "our own: releases a parked key, or the lanes of a key; `action` is retry or skip; with `queueId` and `firstOffset`, only the message at this place",
    RequestCode.ORDERLYMQ_FETCH_LANES: f"our own: gives a member {_LANES} of a topic, from all its queues; the request waits until there is one",
    RequestCode.ORDERLYMQ_COMPLETE_LANES: f"our own: reports the results of attempts at {_LANES}: done, renew, retry or release, as JSON",
    RequestCode.ORDERLYMQ_LANES: f"our own: the figures of the {_LANES} of a group, and its lanes in trouble or of a `key`, as JSON",
    RequestCode.ORDERLYMQ_PING: "our own: answers 0 as soon as the process reads it, whatever the state of its disk and its broker group",
    RequestCode.ORDERLYMQ_TRANSFER_LEADERSHIP: "our own: moves the leadership to another replica",
    RequestCode.ORDERLYMQ_CHANGE_MEMBERSHIP: "our own: adds, promotes or removes a replica",
    RequestCode.ORDERLYMQ_BACKUP_BEGIN: (
        "our own: the leader makes a copy of its store, or describes an unread copy that it made for the same `creation` again; the answer has "
        "`session`, the position, and the files with their size and the digest of their end, as JSON"
    ),
    RequestCode.ORDERLYMQ_BACKUP_READ: (
        "our own: reads `size` bytes, at most 1 MiB, from `offset` of `file` under `session`; each piece of a table can be read once; "
        "with `unchanged`, refused if a topic has grown since; `checksum` is the CRC-32 of the body"
    ),
    RequestCode.ORDERLYMQ_BACKUP_END: (
        "our own: deletes the copy of `session`; it is also deleted after a minute without 20521, and if the disk is nearly full"
    ),
}

_HEAD: Final = """\
# Request codes

This table lists the requests of RocketMQ's remoting protocol and the process that serves each of them. The names are RocketMQ's
(`RequestCode`). The numbers from 20500 to 20522 are our own; only our processes send them to each other. A request that no process
serves gets code 3, `REQUEST_CODE_NOT_SUPPORTED`, with the reason in the remark. Clients then fall back immediately.

The leader of a broker group answers the requests that a broker serves. A replica that does not lead answers queries of tables
that are the same on all replicas. It refuses changes with code 1 and a remark that names the leader's address. It treats
sends, pulls and offset queries as clients need it in a fail-over.

A change of topics, consumer groups, accounts, settings, offsets, members or leaders (15, 17, 18, 25, 50, 51, 53, 200, 207, 215, 225, 513, 20502 to 20505,
20507, 20511, 20520 to 20522) may name the token of an operator in the field `operatorToken`:

* The request is refused with code 1 if a greater token is known
  ([a former operator](../explanation/guarantees.md#6-acknowledged-is-kept)).
* A request with the field needs [a signature of version 2](../howto/security.md) if the cluster has an operator's account or access control.
* A request without the field is served as usual, except 20502, 20505 and 20507.
* Name servers read the field in requests 100 and 102 that the cluster has signed.

This page is generated: `python -m tests.broker.test_protocol_docs`.

| code | name | served by | remark |
| ---: | --- | --- | --- |
"""
_NOBODY: Final = "none: code 3"


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
    """Law: docs/reference/protocol.md lists every code and who answers it, as the code does."""
    assert PAGE.read_text() == render(), "run python -m tests.broker.test_protocol_docs"


def test_every_code_of_our_own_is_explained() -> None:
    """Law: every request code of OrderlyMQ's own has a remark, because no other documentation explains it."""
    ours = {code for code in RequestCode if code.name.startswith("ORDERLYMQ_")}

    assert {code for code in ours if not REMARKS.get(code, "").startswith("our own")} == set()


def test_every_code_that_is_served_has_a_name() -> None:
    """Law: every code that is served has a name in RequestCode."""
    assert broker_codes() | name_server_codes() <= {code.value for code in RequestCode}


def test_no_remark_speaks_of_what_is_not_served() -> None:
    """Law: a code that nobody serves has a remark "not served" and a reason; a code that is served has no such reason."""
    assert not {code for code in RequestCode if served_by(code) != _NOBODY} & set(REASONS)
    idle = {code for code in REMARKS if served_by(code) == _NOBODY}
    assert all("not served" in REMARKS[code] for code in idle)


if __name__ == "__main__":
    PAGE.write_text(render())
