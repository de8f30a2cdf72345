"""Requests to the API server; it is a small one of our own that speaks real HTTP."""

import pytest
from aiohttp import web

from orderlymq_operator.kube.api import RetryLaterError
from orderlymq_operator.kube.resources import LEASES, SERVICES, Json
from tests.operator.kube.apiserver import serving_api
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


@pytest.mark.parametrize("text", ["<html>starting</html>", "", "[]", "null"])
async def test_an_answer_of_somebody_else_is_no_answer(text: str) -> None:
    """Law: a proxy that answers in place of the API server ends no operator; the request is made again."""

    async def answer(request: web.Request) -> web.Response:
        return web.Response(text=text)

    async with serving_api(web.route("*", "/{path:.+}", answer)) as api:
        with pytest.raises(RetryLaterError, match="no API server answered"):
            await api.list(SERVICES, NAMESPACE)
        with pytest.raises(RetryLaterError, match="no API server answered"):
            await api.get(LEASES, NAMESPACE, "lease")
