"""
The administration family, put together: which request codes it serves, and what it sees besides.

The rules: changes are the leader's alone, and so is what only a leader knows; tables that are the same on
all replicas are shown by any. The subjects: ``admin_topics``, ``admin_groups``, ``admin_offsets``,
``admin_clients``, ``admin_access``, ``admin_stats``, ``admin_config``.
"""

from collections.abc import Sequence

from orderlymq_broker.processors.admin_access import AccessAdministration
from orderlymq_broker.processors.admin_clients import ClientAdministration
from orderlymq_broker.processors.admin_config import ConfigAdministration
from orderlymq_broker.processors.admin_groups import GroupAdministration
from orderlymq_broker.processors.admin_offsets import OffsetAdministration
from orderlymq_broker.processors.admin_stats import StatsAdministration
from orderlymq_broker.processors.admin_topics import TopicAdministration
from orderlymq_broker.processors.asking import Asker
from orderlymq_broker.processors.changing import leader_only
from orderlymq_broker.processors.context import Handler
from orderlymq_broker.processors.core import BrokerCore
from orderlymq_broker.processors.effects import Effect, Now, Peer
from orderlymq_broker.processors.figures import Figures
from orderlymq_broker.state.records import Append
from orderlymq_protocol.codes import RequestCode
from orderlymq_protocol.frame.command import RemotingCommand


class Administration:
    """Serves administrators; the companion of their handlers."""

    def __init__(self, core: BrokerCore) -> None:
        context, flush = core.context, core.committer.take
        self._context = context
        self.figures = Figures(context)
        self.asker = Asker(context)
        self.access = AccessAdministration(context)
        self.topics = TopicAdministration(context, flush)
        self.groups = GroupAdministration(context, core.queries, self.figures, flush)
        self.offsets = OffsetAdministration(context, core.queries, core.committer, self.asker)
        self.clients = ClientAdministration(context, self.asker)
        self.stats = StatsAdministration(context, self.figures)
        self.config = ConfigAdministration(context, core.retention)

    def for_leaders(self) -> dict[int, Handler]:
        """Return the handlers that change something, or know what only the leader knows."""
        handlers: dict[int, Handler] = {
            RequestCode.UPDATE_AND_CREATE_TOPIC: self.topics.create,
            RequestCode.UPDATE_AND_CREATE_TOPIC_LIST: self.topics.create_list,
            RequestCode.DELETE_TOPIC_IN_BROKER: self.topics.delete,
            RequestCode.UPDATE_BROKER_CONFIG: self.config.change,
            RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP: self.groups.update,
            RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST: self.groups.update_list,
            RequestCode.DELETE_SUBSCRIPTIONGROUP: self.groups.delete,
            RequestCode.UPDATE_AND_CREATE_ACL_CONFIG: self.access.set_account,
            RequestCode.DELETE_ACL_CONFIG: self.access.delete_account,
            RequestCode.UPDATE_GLOBAL_WHITE_ADDRS_CONFIG: self.access.set_white_addresses,
            RequestCode.GET_CONSUME_STATS: self.groups.progress,
            RequestCode.GET_BROKER_CONSUME_STATS: self.groups.all_progress,
            RequestCode.QUERY_CONSUME_TIME_SPAN: self.groups.time_spans,
            RequestCode.GET_CONSUMER_CONNECTION_LIST: self.clients.consumers,
            RequestCode.QUERY_TOPICS_BY_CONSUMER: self.clients.topics_of,
            RequestCode.QUERY_SUBSCRIPTION_BY_CONSUMER: self.clients.subscription_of,
            RequestCode.GET_PRODUCER_CONNECTION_LIST: self.clients.producers,
            RequestCode.GET_ALL_PRODUCER_INFO: self.clients.all_producers,
            RequestCode.GET_CONSUMER_RUNNING_INFO: self.clients.running_info,
            RequestCode.CONSUME_MESSAGE_DIRECTLY: self.clients.consume_directly,
            RequestCode.INVOKE_BROKER_TO_RESET_OFFSET: self.offsets.reset,
            RequestCode.INVOKE_BROKER_TO_GET_CONSUMER_STATUS: self.offsets.member_status,
            RequestCode.CLONE_GROUP_OFFSET: self.offsets.clone,
            RequestCode.VIEW_BROKER_STATS_DATA: self.stats.stats,
            RequestCode.CLEAN_EXPIRED_CONSUMEQUEUE: self.config.clean,
            RequestCode.DELETE_EXPIRED_COMMITLOG: self.config.clean,
            RequestCode.CLEAN_UNUSED_TOPIC: self.topics.clean_unused,
        }

        return {code: leader_only(self._context, handler) for code, handler in handlers.items()}

    def for_all(self) -> dict[int, Handler]:
        """Return the handlers that only read what every replica has."""
        return {
            RequestCode.GET_ALL_TOPIC_CONFIG: self.topics.configs,
            RequestCode.GET_TOPIC_CONFIG: self.topics.config,
            RequestCode.GET_TOPIC_STATS_INFO: self.topics.stats,
            RequestCode.QUERY_TOPIC_CONSUME_BY_WHO: self.topics.consumers,
            RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_BROKER: self.topics.system_topics,
            RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG: self.groups.configs,
            RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG: self.groups.config,
            RequestCode.GET_ALL_CONSUMER_OFFSET: self.offsets.all_offsets,
            RequestCode.GET_ALL_DELAY_OFFSET: self.offsets.delay_offsets,
            RequestCode.GET_BROKER_CLUSTER_ACL_INFO: self.access.info,
            RequestCode.GET_BROKER_CONFIG: self.config.show,
            RequestCode.GET_BROKER_RUNTIME_INFO: self.stats.runtime,
            RequestCode.QUERY_CONSUME_QUEUE: self.stats.queue_entries,
        }

    # -- companion ---------------------------------------------------------------------------------

    def appended(self, records: Sequence[Append]) -> None:
        """Count applied messages."""
        self.figures.appended(records)

    def tick(self, now: Now) -> list[Effect]:
        """Sample figures, give up on clients that are silent."""
        self.figures.tick(now)

        return self.asker.tick(now)

    def replied(self, response: RemotingCommand, peer: Peer, now: Now) -> list[Effect]:
        """Pass a client's answer on to whoever asked."""
        return self.asker.replied(response, peer)

    def closed(self, connection: int, now: Now) -> list[Effect]:
        """Give up on a client that is gone."""
        return self.asker.closed(connection)

    def ended(self) -> list[Effect]:
        """Give up on all clients: another replica leads."""
        self.figures.ended()
        self.topics.ended()

        return self.asker.ended()


def register_administration(core: BrokerCore) -> None:
    """Let *core* serve administrators."""
    administration = Administration(core)
    shared = administration.for_all()
    leading = administration.for_leaders()
    # Followers have these too: they refuse them with what to do.
    core.register({**shared, **leading}, on_followers=[*shared, *leading])
    core.attach(administration)
