"""Requests to the API server; it is a small one of our own that speaks real HTTP."""

import pytest

from orderlymq_operator.kube.api import RetryLaterError
from orderlymq_operator.kube.resources import LEASES, SERVICES, Json
from tests.operator.kube.objectserver import ObjectServer
from tests.operator.kube.samples import NAMESPACE


def made(name: str) -> Json:
    return {"metadata": {"name": name, "namespace": NAMESPACE}}


async def test_who_has_lost_the_lease_in_the_middle_of_a_reconcile_changes_nothing_more() -> None:
    """Another operator acts by then: what this one has decided came from what it read before."""
    server = ObjectServer()
    async with server.serving() as api:
        await api.create(SERVICES, NAMESPACE, made("before"))
        api.acts = lambda: False

        with pytest.raises(RetryLaterError, match="does not lead any more"):
            await api.create(SERVICES, NAMESPACE, made("after"))
        with pytest.raises(RetryLaterError, match="does not lead any more"):
            await api.delete(SERVICES, NAMESPACE, "before", uid="uid-1")
        assert server.find(SERVICES, NAMESPACE, "before") is not None
        assert server.find(SERVICES, NAMESPACE, "after") is None
        await api.create(LEASES, NAMESPACE, made("lease"))
