"""Looks at consumer groups through a leader of our own; remoting is real."""

import json

from orderlymq_operator.brokers.admin import Admin
from orderlymq_operator.brokers.consumergroups import GroupReconciler
from orderlymq_protocol.codes import RequestCode
from orderlymq_protocol.frame.command import RemotingCommand
from orderlymq_runtime.remoting.client import RemotingClient
from tests.operator.examples import desired, group
from tests.operator.scripted import serving


async def test_the_table_of_locks_is_read_once_for_all_consumer_groups() -> None:
    """It holds the locks of all of them, and may be long."""
    tables = 0

    def locks(request: RemotingCommand) -> RemotingCommand:
        nonlocal tables
        tables += 1
        return request.reply(body=json.dumps({"locks": []}).encode())

    client = RemotingClient()
    async with serving({RequestCode.ORDERLYMQ_LOCK_TABLE: locks}) as (_, address):
        reconciler = GroupReconciler(Admin(client))
        wanted = desired(group("billing"), group("audit"), group("mail"))
        await reconciler.reconcile(wanted, {"demo-0": address}, {"demo-0": {}}, 0)
        await reconciler.reconcile(desired(), {"demo-0": address}, {"demo-0": {}}, 5_000)
    await client.close()

    assert tables == 1
