"""A release is of what was shown."""

import pytest

from orderlymq.admin.client import AdminClient
from orderlymq_console.actions.plan import Changed
from orderlymq_console.actions.release import plan_release, release
from orderlymq_console.cluster import ClusterReader
from orderlymq_console.collector import Collector
from orderlymq_console.parameters import Parameters
from orderlymq_testing.cluster import Cluster
from tests.console.actions.test_actions import held

pytestmark = pytest.mark.cluster


@pytest.mark.parametrize("how", ["skip", "retry"])
async def test_a_release_is_of_the_message_that_was_shown(troubled: Cluster, how: str) -> None:
    """Law: a release applies only to the message that was shown; it is refused if the lane now waits at another one."""
    async with AdminClient(troubled.name_server) as admin:
        reader = ClusterReader(admin, Collector())
        asked = {"group": "billing", "topic": "orders", "key": "order-3", "how": how}
        plan = await plan_release(reader, Parameters(asked))
        (stand,) = plan.stands
        elsewhere = stand.model_copy(update={"offset": stand.offset + 1})

        with pytest.raises(Changed, match="no longer parked at the offset that was shown"):
            await release(reader, plan.model_copy(update={"stands": (elsewhere,)}))

    assert await held(troubled) == [("order-3", 1)]
