"""
All processors for administrators: the request codes that each serves, and the events that each gets.

The rules: only the leader serves changes and questions about what only a leader knows; any replica shows the tables
that are the same on all replicas. The subjects: ``topics``, ``groups``, ``groupprogress``, ``offsets``, ``clients``,
``accounts``, ``statistics``, ``config``.
"""

from orderlymq_broker.core.brokertoclient import ClientCalls
from orderlymq_broker.core.requestcontext import Context, Handler
from orderlymq_broker.core.responses import leader_only
from orderlymq_broker.processors.admin.accounts import AccessAdministration
from orderlymq_broker.processors.admin.clients import ClientAdministration
from orderlymq_broker.processors.admin.config import ConfigAdministration
from orderlymq_broker.processors.admin.groupprogress import GroupProgress
from orderlymq_broker.processors.admin.groups import GroupAdministration
from orderlymq_broker.processors.admin.offsets import OffsetAdministration
from orderlymq_broker.processors.admin.statistics import StatsAdministration
from orderlymq_broker.processors.admin.topics import TopicAdministration
from orderlymq_broker.processors.fetch.query import QueryProcessor
from orderlymq_broker.processors.groups.fence import Fence
from orderlymq_broker.processors.groups.offsets import Committer
from orderlymq_broker.processors.observe.rates import Figures
from orderlymq_broker.processors.topics.pendingretries import RetryWatch
from orderlymq_broker.processors.topics.retention import RetentionService
from orderlymq_protocol.codes import RequestCode


class Administration:
    """Serves administrators' requests."""

    def __init__(
        self,
        context: Context,
        queries: QueryProcessor,
        committer: Committer,
        fence: Fence,
        retention: RetentionService,
        calls: ClientCalls,
        retries: RetryWatch,
    ) -> None:
        flush = committer.take
        self._context = context
        self.figures = Figures(context)
        self.access = AccessAdministration(context)
        self.topics = TopicAdministration(context, self.figures, flush)
        self.groups = GroupAdministration(context, flush, retries)
        self.progress = GroupProgress(context, queries, self.figures)
        self.offsets = OffsetAdministration(context, queries, committer, fence, calls)
        self.clients = ClientAdministration(context, calls)
        self.stats = StatsAdministration(context, self.figures)
        self.config = ConfigAdministration(context, retention)

    def handlers(self) -> dict[int, Handler]:
        """Return the handlers; a follower has all of them, and refuses those of the leader with advice."""
        # These change something, or need what only the leader knows.
        of_leaders: dict[int, Handler] = {
            RequestCode.UPDATE_AND_CREATE_TOPIC: self.topics.create,
            RequestCode.UPDATE_AND_CREATE_TOPIC_LIST: self.topics.create_list,
            RequestCode.UPDATE_AND_CREATE_STATIC_TOPIC: self.topics.create_static,
            RequestCode.DELETE_TOPIC_IN_BROKER: self.topics.delete,
            RequestCode.UPDATE_BROKER_CONFIG: self.config.change,
            RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP: self.groups.update,
            RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST: self.groups.update_list,
            RequestCode.DELETE_SUBSCRIPTIONGROUP: self.groups.delete,
            RequestCode.UPDATE_AND_CREATE_ACL_CONFIG: self.access.set_account,
            RequestCode.DELETE_ACL_CONFIG: self.access.delete_account,
            RequestCode.UPDATE_GLOBAL_WHITE_ADDRS_CONFIG: self.access.set_white_addresses,
            RequestCode.GET_CONSUME_STATS: self.progress.one,
            RequestCode.GET_BROKER_CONSUME_STATS: self.progress.all,
            RequestCode.QUERY_CONSUME_TIME_SPAN: self.progress.time_spans,
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

        return {
            **{code: leader_only(self._context, each) for code, each in of_leaders.items()},
            # These only read what every replica has.
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
