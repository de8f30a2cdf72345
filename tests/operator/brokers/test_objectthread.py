"""The thread next to the event loop."""

from orderlymq_operator.brokers.objectthread import beside_loop
from orderlymq_operator.kube.cachedstate import deciding_from_cache, may_change


async def test_what_runs_beside_the_loop_has_the_context_of_its_caller() -> None:
    """Law: work in that thread has the context variables of its caller."""
    with deciding_from_cache():
        assert not await beside_loop(may_change)
    assert await beside_loop(may_change)
