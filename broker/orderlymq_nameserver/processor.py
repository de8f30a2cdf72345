"""
Answers every request to a name server: parses the header, queries or changes `routes` and `kv`.

Pure and synchronous: `handle` takes a request and returns its response. Rules: codes that are not in the
table are answered with 3. Bad input is answered with 1 and a remark that names the problem, and changes
nothing. Bodies are standard JSON without white space, because the Go client parses them by hand. Sockets and
clocks are in `app`.
"""

from collections import Counter
from collections.abc import Callable
from typing import Final

from orderlymq_nameserver.capacity import NotEntered
from orderlymq_nameserver.kv import KvError, KvTable
from orderlymq_nameserver.negativecache import NegativeCache
from orderlymq_nameserver.outside import OutsideAddresses
from orderlymq_nameserver.proofs import OF_ONE_BROKER, NotSigned, Proofs, names_cluster
from orderlymq_nameserver.registrations import (
    Identity,
    listed_groups,
    named_groups,
)
from orderlymq_nameserver.routes import BROKERS_MAX, RouteRegistry
from orderlymq_protocol.body import fastjson
from orderlymq_protocol.body.catalogue import (
    MASTER_ID,
    REGISTRATION_SIZE_MAX,
    UNIT,
    UNIT_SUBSCRIPTION,
    DataVersion,
    KVTable,
    ModelError,
    RegisterBrokerBody,
    TopicList,
    TopicRouteData,
)
from orderlymq_protocol.body.fastjson import JsonError
from orderlymq_protocol.body.javaproperties import java_properties
from orderlymq_protocol.codes import LanguageCode, RequestCode, ResponseCode
from orderlymq_protocol.frame.command import RemotingCommand
from orderlymq_protocol.header.catalogue import (
    BrokerHeader,
    BrokerNameHeader,
    DeleteTopicFromNamesrvHeader,
    GetKVListByNamespaceHeader,
    GetTopicsByClusterHeader,
    HeaderError,
    KVKeyHeader,
    PutKVConfigHeader,
    RegisterBrokerHeader,
    RegisterBrokerResponseHeader,
    TopicHeader,
)
from orderlymq_protocol.header.extensions import EXT_TOKEN
from orderlymq_protocol.integers import read_integer
from orderlymq_protocol.message.record import body_crc
from orderlymq_protocol.names import (
    AUTO_CREATE_TOPIC,
    ORDER_NAMESPACE,
    TOPIC_LENGTH_MAX,
    is_dlq_topic,
    is_retry_topic,
)
from orderlymq_protocol.operatortoken import stale_operator, token_max_at
from orderlymq_protocol.unsupported import remark_of

# Properties that RocketMQ refuses to change (NamesrvConfig), with its wording: paths would let a client write any
# file.
PROTECTED_PROPERTIES: Final = frozenset({"configBlackList", "configStorePath", "kvConfigPath"})

# Brokers call a name server that is back once a second (``registration.py``), so by then all of them have.
KNOWS_ALL_AFTER_MS: Final = 3_000

# For clusters, brokers and addresses, as for groups; RocketMQ names a broker after its host, dots included.
NAME_LENGTH_MAX: Final = 255

# The largest JSON body that is parsed on the event loop that answers all clients; only registrations are larger.
BODY_SIZE_MAX: Final = 64 << 10
# The longest time that an answer that could be wrong waits: less than the client's time-out of 3 s.
HOLD_MAX_MS: Final = 2_500

_REFUSALS: Final = (HeaderError, ModelError, JsonError, KvError, NotEntered)
_ORDERED_STAY: Final = (
    "{} ordered topics stay as they are: their senders hash keys over this list; to make one read-only, let its broker refuse sends "
    "(mqadmin updateTopicPerm -p 4)"
)
_ORDER_ENABLED: Final = "orderMessageEnable"
_FIXED: Final = (
    "{} is still {}: without their queue lists, keys of ordered topics would move to other queues"
)
_SET_AT_START: Final = "{} stays {} while this name server runs: start it with another value"
_AWAITED: Final = (
    "topic {} has no route yet: broker groups that were restored together with others have not "
    "registered; /status of this name server shows those that have"
)
_NO_ROUTE: Final = (
    "No topic route info in name server for the topic: {}\n"
    "See http://rocketmq.apache.org/docs/faq/ for further details."
)


class NameServerCore:
    """One name server without its sockets.

    Args:
        kv: the key-value configuration.
        expiry_ms: silence after which a registration ends.
        properties: the properties that code 319 shows; code 318 refuses to change them.
        began_ms: when this name server started, by the clock of `handle`; None means long ago.
        proofs: checks signatures; without it nothing has to be signed.
        make_room: called with the size that a compressed body may have, before it is decompressed.
    """

    def __init__(
        self,
        kv: KvTable,
        *,
        expiry_ms: int,
        properties: dict[str, str] | None = None,
        began_ms: int | None = None,
        proofs: Proofs | None = None,
        make_room: Callable[[int], None] = lambda _: None,
    ) -> None:
        self._make_room = make_room
        self.kv = kv
        self.outside = OutsideAddresses()
        self._proofs = proofs or Proofs()
        self._began_ms = began_ms
        self._operator_token = 0  # the greatest one in a request to this process
        self.routes = RouteRegistry(
            expiry_ms=expiry_ms, ordered_conf=lambda topic: kv.get(ORDER_NAMESPACE, topic)
        )
        self.properties = {_ORDER_ENABLED: "true", **(properties or {})}
        self.negative_cache = NegativeCache()
        self.requests: Counter[tuple[int, int]] = Counter()  # by request code and response code
        self._handlers: dict[int, Callable[[RemotingCommand, int, int], RemotingCommand]] = {
            RequestCode.PUT_KV_CONFIG: self._put_kv,
            RequestCode.GET_KV_CONFIG: self._get_kv,
            RequestCode.DELETE_KV_CONFIG: self._delete_kv,
            RequestCode.GET_KVLIST_BY_NAMESPACE: self._list_kv,
            RequestCode.REGISTER_BROKER: self._register,
            RequestCode.UNREGISTER_BROKER: self._unregister,
            RequestCode.QUERY_DATA_VERSION: self._query_data_version,
            RequestCode.BROKER_HEARTBEAT: self._heartbeat,
            RequestCode.GET_ROUTEINFO_BY_TOPIC: self._route,
            RequestCode.GET_BROKER_CLUSTER_INFO: self._cluster_info,
            RequestCode.GET_BROKER_MEMBER_GROUP: self._member_group,
            RequestCode.WIPE_WRITE_PERM_OF_BROKER: self._wipe_write_perm,
            RequestCode.ADD_WRITE_PERM_OF_BROKER: self._add_write_perm,
            RequestCode.DELETE_TOPIC_IN_NAMESRV: self._delete_topic,
            RequestCode.REGISTER_TOPIC_IN_NAMESRV: self._register_topic,
            RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER: self._all_topics,
            RequestCode.GET_TOPICS_BY_CLUSTER: self._cluster_topics,
            RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_NS: self._system_topics,
            RequestCode.GET_UNIT_TOPIC_LIST: self._unit_topics,
            RequestCode.GET_HAS_UNIT_SUB_TOPIC_LIST: self._unit_topics,
            RequestCode.GET_HAS_UNIT_SUB_UNUNIT_TOPIC_LIST: self._unit_topics,
            RequestCode.UPDATE_NAMESRV_CONFIG: self._update_properties,
            RequestCode.GET_NAMESRV_CONFIG: self._get_properties,
        }

    def begin(self, now_ms: int) -> None:
        """Count as newly started from now on, because brokers may be about to register again."""
        self._began_ms = now_ms

    @property
    def codes(self) -> list[int]:
        """The request codes that are served."""
        return sorted(self._handlers)

    def handle(
        self,
        request: RemotingCommand,
        connection: int,
        now_ms: int,
        wall_ms: int = 0,
        *,
        listener: str = "",
    ) -> RemotingCommand:
        """Return the response; the caller drops it if the request was oneway.

        Signatures are checked at *wall_ms*, the time since 1970. *listener* is the additional listener that
        the request came in by.
        """
        if not listener:
            return self._handle(request, connection, now_ms, wall_ms)
        refusal = self.outside.refusal(request, listener)
        if refusal is not None:
            self.requests[(-1, refusal.code)] += 1
            return refusal
        reply = self._handle(request, connection, now_ms, wall_ms)
        return self.outside.translate(request, reply, listener)

    def _handle(
        self, request: RemotingCommand, connection: int, now_ms: int, wall_ms: int
    ) -> RemotingCommand:
        handler = self._handlers.get(request.code)
        if handler is None:
            reply = request.reply(
                ResponseCode.REQUEST_CODE_NOT_SUPPORTED,
                remark=remark_of(request.code),
            )
            self.requests[(-1, reply.code)] += 1  # one key: the numbers are the peer's choice
            return reply
        if len(request.body) > BODY_SIZE_MAX and request.code != RequestCode.REGISTER_BROKER:
            self.requests[(request.code, ResponseCode.SYSTEM_ERROR)] += 1
            return request.reply(
                ResponseCode.SYSTEM_ERROR,
                remark=f"the body of a request {request.code} has {len(request.body)} bytes; at most "
                f"{BODY_SIZE_MAX} are allowed: send less in one request",
            )
        try:
            self._admit(request, wall_ms)
            reply = handler(request, connection, now_ms)
        except NotSigned as reason:
            reply = self._proofs.refusal(request, reason)
        except _REFUSALS as error:
            reply = request.reply(ResponseCode.SYSTEM_ERROR, remark=str(error))
        self.requests[(request.code, reply.code)] += 1
        return reply

    def _admit(self, request: RemotingCommand, wall_ms: int) -> None:
        """Check that a request is signed if it has to be.

        Raises:
            NotSigned: It is not.
            HeaderError: It is from an operator that another one has replaced.
        """
        if not self._proofs.needed or self._holds_already(request):
            return
        signed = self._proofs.judge(request, wall_ms)
        if signed and EXT_TOKEN in request.ext:
            self._check_operator(request.ext[EXT_TOKEN], wall_ms)
        name = request.ext.get("brokerName", "")
        if request.code not in OF_ONE_BROKER or not name:
            return
        if signed and request.code == RequestCode.REGISTER_BROKER:
            self.routes.reserve(name)
        if not signed and self.routes.is_reserved(name):
            raise NotSigned(
                f"the broker name {name} belongs to a broker that signs; give this broker another "
                "name"
            )

    def _check_operator(self, text: str, wall_ms: int) -> None:
        """Refuse the queue list of an operator that another one has replaced, as brokers do."""
        try:
            token = read_integer(text, 0)
        except ValueError as error:
            raise HeaderError(f"{EXT_TOKEN} {error}") from error
        if token < self._operator_token:
            raise HeaderError(stale_operator(token, self._operator_token))
        # A token from a clock that is ahead is not stored, because it would refuse all later operators.
        if token <= token_max_at(wall_ms, self._operator_token):
            self._operator_token = token

    def trusts(self, broker_name: str) -> bool:
        """Return whether a registration of this name comes from the cluster, as far as can be known."""
        return not self._proofs.needed or self.routes.is_reserved(broker_name)

    def _holds_already(self, request: RemotingCommand) -> bool:
        """Return whether the requested change is already in effect; then the request needs no signature.

        RocketMQ's tools delete a topic at brokers, and then here, when the brokers have already reported it.
        They delete a consumer group at one broker after the other, and its topics here after each; such a
        topic stays where brokers register it.
        """
        topic = request.ext.get("topic", "")
        if request.code == RequestCode.DELETE_TOPIC_IN_NAMESRV:
            return _is_of_group(topic) or self.routes.route(topic) is None
        key = request.ext.get("key", "")
        if request.ext.get("namespace") != ORDER_NAMESPACE:
            return False
        if request.code == RequestCode.DELETE_KV_CONFIG:
            return self.kv.get(ORDER_NAMESPACE, key) is None
        return request.code == RequestCode.PUT_KV_CONFIG and self.kv.get(
            ORDER_NAMESPACE, key
        ) == request.ext.get("value")

    def knows_too_little(self, request: RemotingCommand, now_ms: int) -> bool:
        """Return whether the answer to a route query, or to an early deletion, should wait, for at most `HOLD_MAX_MS`.

        A name server that has just started may not know the topic yet. A client that gets the answer that a
        topic does not exist next asks for the template of new topics; see `negativecache`. Nor may the name
        server know every broker group in the list of an ordered topic yet: keys move for a client that gets
        only some of them. A listed topic exists, however long none of its groups has registered. The Go
        client does not read the list, so it gets no partial route during that time: brokers learn of an added
        name server only when they restart. RocketMQ's tools ask for the deletion of a topic, unsigned, right
        after deleting it at its brokers, before these report that it is gone.
        """
        topic = request.ext.get("topic", "")
        if request.body or not 0 < len(topic) <= TOPIC_LENGTH_MAX:
            return False  # no client sends a body, which would be kept; or there cannot be such a topic
        if request.code == RequestCode.DELETE_TOPIC_IN_NAMESRV:
            signs = not self._proofs.needed or names_cluster(request)
            return not signs and not self._holds_already(request)
        if request.code != RequestCode.GET_ROUTEINFO_BY_TOPIC:
            return False
        if self._awaits_groups(topic):
            return True
        conf = self.kv.get(ORDER_NAMESPACE, topic)
        is_new = self._is_new(now_ms)
        if not is_new and (conf is None or request.language != LanguageCode.GO):
            return conf is not None and self.routes.encoded_route(topic) is None
        route = self.routes.route(topic)
        if (topic == AUTO_CREATE_TOPIC and is_new) or route is None:
            return True
        return not listed_groups(conf or "") <= {queue.broker_name for queue in route.queue_datas}

    def judges_by(self, now_ms: int) -> tuple[int, bool]:
        """Return the inputs of `knows_too_little` besides the request: while they are equal, so are its results."""
        return self.routes.changes, self._is_new(now_ms)

    # Registrations.

    def _register(self, request: RemotingCommand, connection: int, now_ms: int) -> RemotingCommand:
        header = RegisterBrokerHeader.from_ext(request.ext)
        if header.body_crc32 and header.body_crc32 != body_crc(request.body):
            return request.reply(ResponseCode.SYSTEM_ERROR, remark="crc32 not match")
        who = _identity(header)
        restored = named_groups(header.restored_groups or "")
        _check_lengths(who.cluster, who.broker_name, who.address, header.ha_server_addr, *restored)
        if len(restored) > BROKERS_MAX:
            raise HeaderError(f"at most {BROKERS_MAX} broker groups can be restored together")
        if header.compressed:
            self._make_room(REGISTRATION_SIZE_MAX)
        self.routes.register(
            who,
            RegisterBrokerBody.decode(request.body, compressed=header.compressed),
            ha_address=header.ha_server_addr,
            connection=connection,
            now_ms=now_ms,
            expiry_ms=header.heartbeat_timeout_millis,
            is_trusted=self.trusts(who.broker_name),
            restored_with=restored,
        )
        master = self.routes.master(who.broker_name) if who.broker_id != MASTER_ID else None
        address, ha_address = master or (None, None)
        awaited = ";".join(sorted(self.routes.awaited(who.broker_name)))
        answer = RegisterBrokerResponseHeader(
            master_addr=address, ha_server_addr=ha_address, awaited_groups=awaited or None
        )
        order_conf = self.kv.table(ORDER_NAMESPACE)
        body = KVTable(order_conf).to_json() if order_conf else b""
        return request.reply(ext=answer.to_ext(), body=body)

    def _unregister(self, request: RemotingCommand, connection: int, _: int) -> RemotingCommand:
        self.routes.unregister(_identity(BrokerHeader.from_ext(request.ext)), connection)
        return request.reply()

    def _query_data_version(
        self, request: RemotingCommand, connection: int, now_ms: int
    ) -> RemotingCommand:
        who = _identity(BrokerHeader.from_ext(request.ext))
        theirs = DataVersion.from_json(request.body)
        # A query does not renew the registration of a broker that signs: that needs a signed request.
        reserved = self.routes.is_reserved(who.broker_name)
        ours = self.routes.version(who) if reserved else self.routes.renew(who, connection, now_ms)
        return request.reply(
            ext={"changed": "true" if ours != theirs else "false"},
            body=b"" if ours is None else ours.to_json(),
        )

    def _heartbeat(self, request: RemotingCommand, connection: int, now_ms: int) -> RemotingCommand:
        # The same required fields as a version query, except that the id may be missing.
        header = BrokerHeader.from_ext({"brokerId": str(MASTER_ID), **request.ext})
        self.routes.renew(_identity(header), connection, now_ms)
        return request.reply()

    # Routes and lists.

    def _route(self, request: RemotingCommand, connection: int, now_ms: int) -> RemotingCommand:
        topic = TopicHeader.from_ext(request.ext).topic
        if self._awaits_groups(topic):
            remark = _AWAITED.format(topic)
            return request.reply(ResponseCode.TOPIC_NOT_EXIST, remark=remark)
        body = self.routes.encoded_route(topic)
        if topic == AUTO_CREATE_TOPIC:
            if self._is_new(now_ms):
                # An existing topic may not be registered again yet; see `negativecache`.
                body = None
            elif request.language != LanguageCode.GO and not self.negative_cache.is_fresh(
                connection, now_ms
            ):
                body = self.routes.encoded_brokers(topic)
        elif (
            body is None
            and not self._is_new(now_ms)
            and self.kv.get(ORDER_NAMESPACE, topic) is None
        ):
            self.negative_cache.note(connection, now_ms)
        if body is None:
            return request.reply(ResponseCode.TOPIC_NOT_EXIST, remark=_NO_ROUTE.format(topic))
        return request.reply(body=body)

    def _awaits_groups(self, topic: str) -> bool:
        """Return whether a group that never registered may have queues of a topic; the template counts as an unknown topic."""
        return self.routes.awaits("" if topic == AUTO_CREATE_TOPIC else topic)

    def _is_new(self, now_ms: int) -> bool:
        return self._began_ms is not None and now_ms - self._began_ms < KNOWS_ALL_AFTER_MS

    def _cluster_info(self, request: RemotingCommand, connection: int, _: int) -> RemotingCommand:
        return request.reply(body=self.routes.cluster_info().to_json())

    def _member_group(self, request: RemotingCommand, connection: int, _: int) -> RemotingCommand:
        names = _required(request, "clusterName"), _required(request, "brokerName")
        _check_lengths(*names)
        members = self.routes.members(*names)
        return request.reply(body=fastjson.dumps({"brokerMemberGroup": members.to_json_value()}))

    def _all_topics(self, request: RemotingCommand, connection: int, _: int) -> RemotingCommand:
        return request.reply(body=self.routes.encoded_topics())

    def _cluster_topics(self, request: RemotingCommand, connection: int, _: int) -> RemotingCommand:
        cluster = GetTopicsByClusterHeader.from_ext(request.ext).cluster
        return request.reply(body=self.routes.encoded_topics(cluster=cluster))

    def _system_topics(self, request: RemotingCommand, connection: int, _: int) -> RemotingCommand:
        """Return the system topics: every broker has one named after its cluster and one named after itself."""
        info = self.routes.cluster_info()
        names = [*info.cluster_addr_table, *info.broker_addr_table]
        addresses = [
            address
            for broker in info.broker_addr_table.values()
            for address in broker.broker_addrs.values()
        ]
        return request.reply(
            body=TopicList(tuple(names), addresses[0] if addresses else None).to_json()
        )

    def _unit_topics(self, request: RemotingCommand, connection: int, _: int) -> RemotingCommand:
        # mask and wanted value of the two bits, by code
        mask, wanted = {
            RequestCode.GET_UNIT_TOPIC_LIST: (UNIT, UNIT),
            RequestCode.GET_HAS_UNIT_SUB_TOPIC_LIST: (UNIT_SUBSCRIPTION, UNIT_SUBSCRIPTION),
            RequestCode.GET_HAS_UNIT_SUB_UNUNIT_TOPIC_LIST: (
                UNIT | UNIT_SUBSCRIPTION,
                UNIT_SUBSCRIPTION,
            ),
        }[RequestCode(request.code)]
        return request.reply(body=self.routes.encoded_topics(mask=mask, wanted=wanted))

    # Changes by administrators.

    def _wipe_write_perm(
        self, request: RemotingCommand, connection: int, _: int
    ) -> RemotingCommand:
        name = BrokerNameHeader.from_ext(request.ext).broker_name
        count, kept = self.routes.set_writable(name, is_writable=False)
        remark = _ORDERED_STAY.format(kept) if kept else None
        return request.reply(ext={"wipeTopicCount": str(count)}, remark=remark)

    def _add_write_perm(self, request: RemotingCommand, connection: int, _: int) -> RemotingCommand:
        name = BrokerNameHeader.from_ext(request.ext).broker_name
        count, _ = self.routes.set_writable(name, is_writable=True)
        return request.reply(ext={"addTopicCount": str(count)})

    def _delete_topic(self, request: RemotingCommand, connection: int, _: int) -> RemotingCommand:
        header = DeleteTopicFromNamesrvHeader.from_ext(request.ext)
        if not (self._proofs.needed and _is_of_group(header.topic)):
            self.routes.delete_topic(header.topic, header.cluster_name)
        return request.reply()

    def _register_topic(self, request: RemotingCommand, connection: int, _: int) -> RemotingCommand:
        topic = TopicHeader.from_ext(request.ext).topic
        route = TopicRouteData.from_json(request.body)
        self.routes.add_queues(topic, route.queue_datas)
        return request.reply()

    def _put_kv(self, request: RemotingCommand, connection: int, _: int) -> RemotingCommand:
        header = PutKVConfigHeader.from_ext(request.ext)
        if header.namespace == ORDER_NAMESPACE:
            # Refuse a queue list that no client could parse in a route.
            TopicRouteData.from_json_value({"orderTopicConf": header.value})
        is_changed = self.kv.put(header.namespace, header.key, header.value)
        if is_changed and header.namespace == ORDER_NAMESPACE:
            self.routes.purge()
        return request.reply()

    def _get_kv(self, request: RemotingCommand, connection: int, _: int) -> RemotingCommand:
        header = KVKeyHeader.from_ext(request.ext)
        value = self.kv.get(header.namespace, header.key)
        if value is None:
            return request.reply(
                ResponseCode.QUERY_NOT_FOUND,
                remark=f"No config item, Namespace: {header.namespace} Key: {header.key}",
            )
        return request.reply(ext={"value": value})

    def _delete_kv(self, request: RemotingCommand, connection: int, _: int) -> RemotingCommand:
        header = KVKeyHeader.from_ext(request.ext)
        is_changed = self.kv.delete(header.namespace, header.key)
        if is_changed and header.namespace == ORDER_NAMESPACE:
            self.routes.purge()
        return request.reply()

    def _list_kv(self, request: RemotingCommand, connection: int, _: int) -> RemotingCommand:
        namespace = GetKVListByNamespaceHeader.from_ext(request.ext).namespace
        table = self.kv.table(namespace)
        if not table:
            return request.reply(
                ResponseCode.QUERY_NOT_FOUND, remark=f"No config item, Namespace: {namespace}"
            )
        return request.reply(body=KVTable(table).to_json())

    def _update_properties(
        self, request: RemotingCommand, connection: int, _: int
    ) -> RemotingCommand:
        """Accept a request that changes nothing: no property can be changed. Unknown ones are ignored, as in RocketMQ."""
        try:
            given = java_properties(request.body.decode())
        except UnicodeDecodeError:
            return request.reply(ResponseCode.SYSTEM_ERROR, remark="the body is not UTF-8 text")
        if protected := sorted(PROTECTED_PROPERTIES & given.keys()):
            return request.reply(
                ResponseCode.NO_PERMISSION, remark=f"Can not update config {', '.join(protected)}."
            )
        for key, value in sorted(self.properties.items()):
            if given.get(key, value) != value:
                why = _FIXED if key == _ORDER_ENABLED else _SET_AT_START
                return request.reply(ResponseCode.SYSTEM_ERROR, remark=why.format(key, value))
        return request.reply()

    def _get_properties(self, request: RemotingCommand, connection: int, _: int) -> RemotingCommand:
        lines = [f"{key}={value}\n" for key, value in sorted(self.properties.items())]
        return request.reply(body="".join(lines).encode())


def _identity(
    header: RegisterBrokerHeader | BrokerHeader,
) -> Identity:
    return Identity(header.cluster_name, header.broker_name, header.broker_id, header.broker_addr)


def _check_lengths(*names: str) -> None:
    if max(map(len, names)) > NAME_LENGTH_MAX:
        raise HeaderError(
            f"the name of a cluster or broker, or an address, may have at most {NAME_LENGTH_MAX} "
            "characters"
        )


def _is_of_group(topic: str) -> bool:
    return is_retry_topic(topic) or is_dlq_topic(topic)


def _required(request: RemotingCommand, name: str) -> str:
    value = request.ext.get(name)
    if value is None:
        raise HeaderError(f"the custom field <{name}> is null (request {request.code})")
    return value
