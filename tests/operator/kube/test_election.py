"""Elections by a Lease in a small API server of our own, with resource versions and conflicts; HTTP is real."""

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any

import orjson
import pytest
from aiohttp import web

from orderlymq_operator.kube.api import Api
from orderlymq_operator.kube.election import LEASE_S, NAME, Election
from tests.operator.kube.apiserver import absent, serving_api


class Leases:
    """One Lease for each namespace; later ones are younger."""

    def __init__(self) -> None:
        self.made: dict[str, dict[str, Any]] = {}
        self.writes = self.reads = 0
        self.forbidden = False

    @property
    def lease(self) -> dict[str, Any] | None:
        return self.made.get("ops")

    async def answer(self, request: web.Request) -> web.Response:
        namespace = request.match_info["namespace"]
        lease = self.made.get(namespace)
        if request.method == "GET":
            self.reads += 1
            if lease is None:
                return await absent(request)
            return web.json_response(lease)
        made = orjson.loads(await request.read())
        version = made["metadata"].get("resourceVersion")
        present = None if lease is None else lease["metadata"]["resourceVersion"]
        if version != present:
            return web.json_response({"message": "conflict"}, status=409)
        self.writes += 1
        made["metadata"]["resourceVersion"] = str(self.writes)
        made["metadata"]["creationTimestamp"] = (
            f"2026-01-01T00:00:{len(self.made):02}Z"
            if lease is None
            else lease["metadata"]["creationTimestamp"]
        )
        self.made[namespace] = made
        return web.json_response(made)

    async def everywhere(self, request: web.Request) -> web.Response:
        if self.forbidden:
            return web.json_response({"message": "leases is forbidden"}, status=403)
        self.reads += 1
        assert request.query["fieldSelector"] == f"metadata.name={NAME}"
        return web.json_response({"items": list(self.made.values()), "metadata": {}})


@pytest.fixture
async def leases() -> Leases:
    return Leases()


@pytest.fixture
async def api(leases: Leases) -> AsyncIterator[Api]:
    root = "/apis/coordination.k8s.io/v1"
    of_namespace = f"{root}/namespaces/{{namespace}}/leases"
    async with serving_api(
        web.get(f"{root}/leases", leases.everywhere),
        web.post(of_namespace, leases.answer),
        web.route("*", f"{of_namespace}/{NAME}", leases.answer),
    ) as found:
        yield found


async def _lead(election: Election, changed: asyncio.Event) -> asyncio.Task[None]:
    task = asyncio.create_task(election.run())
    async with asyncio.timeout(10):
        await changed.wait()
    return task


def _election(
    api: Api, name: str, namespace: str = "ops", serves: tuple[str, ...] = ()
) -> tuple[Election, asyncio.Event]:
    changed = asyncio.Event()

    def note(leads: bool) -> None:
        if leads:
            changed.set()

    return Election(api, namespace, name, note, serves), changed


async def _end(task: asyncio.Task[None]) -> None:
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


async def test_one_leads_and_gives_the_lease_back_with_a_higher_token(
    api: Api, leases: Leases
) -> None:
    """Law: a process that ends in good order releases its lease; its successor waits for nothing and has a higher token."""
    first, led = _election(api, "a")
    task = await _lead(first, led)
    token = first.token
    assert first.leads

    await _end(task)
    second, led = _election(api, "b")
    task = await _lead(second, led)

    assert second.token > token
    await _end(task)


async def test_the_lease_of_a_living_process_is_left_alone(
    api: Api, leases: Leases, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Law: a second operator leaves the lease of a living one alone and stands by."""
    monkeypatch.setattr("orderlymq_operator.kube.election._WAIT_S", 0.02)
    first, led = _election(api, "a")
    task = await _lead(first, led)
    second, _ = _election(api, "b")

    other = asyncio.create_task(second.run())
    reads = leases.reads
    await _until(lambda: leases.reads >= reads + 5)

    assert (first.leads, second.leads) == (True, False)
    assert leases.lease is not None
    assert leases.lease["spec"]["holderIdentity"] == "a"
    assert leases.lease["spec"]["leaseDurationSeconds"] == LEASE_S
    await _end(other)
    await _end(task)


async def test_a_lease_that_was_deleted_begins_above_every_former_token(
    api: Api, leases: Leases
) -> None:
    """Law: after the Lease was deleted the token is still higher than every former one; brokers refuse smaller tokens."""
    first, led = _election(api, "a")
    await _end(await _lead(first, led))
    leases.made.clear()

    second, led = _election(api, "a")
    task = await _lead(second, led)

    assert second.token >= first.token
    assert second.token > 1_000_000
    await _end(task)


async def test_a_process_that_crashed_takes_its_own_lease_again_with_a_higher_token(
    api: Api, leases: Leases
) -> None:
    """Law: a process that restarts after a crash takes its own lease with a higher token,
    as old calls may still be under way.
    """
    first, led = _election(api, "a")
    task = await _lead(first, led)
    second, led = _election(api, "a")

    successor = await _lead(second, led)

    assert second.token == first.token + 1
    await _end(successor)
    await _end(task)


async def test_who_leads_alone_renews_by_one_write(
    api: Api, leases: Leases, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Law: an operator that leads alone renews by one write; it reads the lease again only if somebody else wrote it."""
    monkeypatch.setattr("orderlymq_operator.kube.election.RENEW_S", 0.02)
    monkeypatch.setattr("orderlymq_operator.kube.election._WAIT_S", 0.02)
    first, led = _election(api, "a")
    task = await _lead(first, led)
    writes, reads = leases.writes, leases.reads
    await _until(lambda: leases.writes >= writes + 5)
    alone = leases.reads - reads

    assert leases.lease is not None
    leases.lease["metadata"]["resourceVersion"] = "of somebody else"
    written = leases.writes
    await _until(lambda: leases.writes > written)

    assert alone == 0
    assert leases.reads == reads + 1
    assert first.leads
    await _end(task)


async def test_a_token_that_nobody_gave_costs_one_renewal(
    api: Api, leases: Leases, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Law: if brokers report a token that nobody gave, the lease's holder takes a greater one at the cost of one renewal;
    others do not.
    """
    monkeypatch.setattr("orderlymq_operator.kube.election.RENEW_S", 0.02)
    first, led = _election(api, "a")
    task = await _lead(first, led)
    other, _ = _election(api, "b")
    standing_by = asyncio.create_task(other.run())
    greatest = first.token + 500

    other.overtaken(greatest + 500)
    first.overtaken(greatest)
    await _until(lambda: first.token > greatest)

    assert (first.token, first.leads, other.leads) == (greatest + 1, True, False)
    await _end(standing_by)
    await _end(task)


async def test_a_token_that_brokers_have_from_a_clock_that_was_ahead_is_followed_once(
    api: Api, leases: Leases, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Law: if brokers have a high token because of a wrong clock, the operator follows it once, by one,
    not at each renewal.
    """
    monkeypatch.setattr("orderlymq_operator.kube.election.RENEW_S", 0.02)
    first, led = _election(api, "a")
    task = await _lead(first, led)
    greatest = first.token + 86_400

    first.overtaken(greatest)
    await _until(lambda: first.token > greatest)
    writes = leases.writes
    await _until(lambda: leases.writes > writes + 3)

    assert (first.token, first.leads) == (greatest + 1, True)
    await _end(task)


async def test_a_token_that_no_broker_believes_is_given_up(
    api: Api, leases: Leases, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Law: a high token that no broker believes is given up; a clock that was a day ahead locks out neither holder."""
    monkeypatch.setattr("orderlymq_operator.kube.election.RENEW_S", 0.02)
    first, led = _election(api, "a")
    await _end(await _lead(first, led))
    assert leases.lease is not None
    leases.lease["spec"]["leaseTransitions"] = first.token + 86_400

    second, led = _election(api, "b")
    task = await _lead(second, led)
    given = second.token
    assert second._written is not None
    second._written["spec"]["leaseTransitions"] = given + 86_400
    writes = leases.writes
    await _until(lambda: leases.writes > writes + 2)

    assert first.token <= given < first.token + 60
    assert (second.leads, second.token < given + 60) == (True, True)
    await _end(task)


async def test_who_cannot_see_other_operators_does_not_raise_its_token(
    api: Api, leases: Leases, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Law: an operator that cannot see others does not raise its token;
    two such operators would raise it in turns forever.
    """
    monkeypatch.setattr("orderlymq_operator.kube.election.RENEW_S", 0.02)
    leases.forbidden = True
    first, led = _election(api, "a")
    task = await _lead(first, led)
    token, writes = first.token, leases.writes

    first.overtaken(token + 500)
    await _until(lambda: leases.writes > writes + 3)

    assert first.token == token
    await _end(task)


async def test_who_cannot_see_other_operators_follows_the_token_of_its_own_lease(
    api: Api, leases: Leases, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Law: it does follow a token in its own lease, even one that its clock finds impossible: an earlier holder made it."""
    monkeypatch.setattr("orderlymq_operator.kube.election.RENEW_S", 0.02)
    leases.forbidden = True
    first, led = _election(api, "a")
    await _end(await _lead(first, led))
    assert leases.lease is not None
    former = leases.lease["spec"]["leaseTransitions"] = first.token + 900

    second, led = _election(api, "b")
    task = await _lead(second, led)
    assert second.token < former
    second.overtaken(former)
    await _until(lambda: second.token > former)
    writes = leases.writes
    second.overtaken(former + 500)
    await _until(lambda: leases.writes > writes + 3)

    assert (second.token, second.leads) == (former + 1, True)
    await _end(task)


# -- two releases ------------------------------------------------------------------------------


async def _until(seen: Callable[[], bool]) -> None:
    async with asyncio.timeout(15):
        while not seen():  # noqa: ASYNC110 - elections do not signal that they stand by
            await asyncio.sleep(0.02)


async def test_an_operator_of_another_release_that_serves_the_same_stands_by_and_says_so(
    api: Api,
) -> None:
    """Law: an operator of another release for the same namespaces stands by, names the first one,
    and later leads with a higher token.
    """
    first, led = _election(api, "a")
    task = await _lead(first, led)
    token = first.token
    second, led = _election(api, "b", "elsewhere", ("shop", "bank"))
    other = asyncio.create_task(second.run())

    await _until(lambda: bool(second.competitor))

    assert (first.leads, second.leads) == (True, False)
    assert "namespace ops" in second.competitor
    assert "bank, shop" in second.competitor

    await _end(task)
    async with asyncio.timeout(15):
        await led.wait()
    assert second.token > token
    assert second.competitor == ""
    await _end(other)


@pytest.mark.long
async def test_the_first_release_acts_again_when_it_is_back(api: Api) -> None:
    """Law: if the first release comes back it acts again, after the second one has withdrawn."""
    first, led = _election(api, "a")
    await _end(await _lead(first, led))
    second, led = _election(api, "b", "elsewhere")
    other = await _lead(second, led)
    token = second.token

    first, led = _election(api, "c")
    task = asyncio.create_task(first.run())
    both = False
    while not led.is_set():
        both = both or (first.leads and second.leads)
        await asyncio.sleep(0.02)

    assert not both
    assert (first.leads, second.leads) == (True, False)
    assert first.token > token
    await _end(task)
    await _end(other)


async def test_operators_of_different_namespaces_do_not_see_each_other(api: Api) -> None:
    """Law: operators for different namespaces each lead, from their first attempt."""
    first, led = _election(api, "a", "ops", ("shop",))
    task = await _lead(first, led)

    second, led = _election(api, "b", "elsewhere", ("bank",))
    other = await _lead(second, led)

    assert (first.competitor, second.competitor) == ("", "")
    await _end(other)
    await _end(task)


@pytest.mark.long
async def test_of_two_that_begin_together_one_acts(api: Api) -> None:
    """Law: if two begin together, only one ever acts, however their requests interleave."""
    for _ in range(3):
        first, one = _election(api, "a", "ops", ("shop",))
        second, two = _election(api, "b", "elsewhere", ("shop",))
        tasks = [asyncio.create_task(each.run()) for each in (first, second)]

        await _until(lambda one=one, two=two: one.is_set() or two.is_set())  # type: ignore[misc]
        await _until(lambda each=(first, second): any(e.competitor for e in each))  # type: ignore[misc]

        assert sorted([first.leads, second.leads]) == [False, True]
        for task in tasks:
            await _end(task)


async def test_a_lease_that_was_left_long_ago_is_waited_for_by_nobody(
    api: Api, leases: Leases
) -> None:
    """Law: nobody waits for a lease that was left long ago; an uninstalled operator could not release it."""
    former, led = _election(api, "a", "elsewhere")
    await _end(await _lead(former, led))
    left = leases.made["elsewhere"]
    left["metadata"]["annotations"]["orderlymq.io/claims"] = "true"
    left["spec"] |= {"holderIdentity": "a", "renewTime": "2026-01-01T00:00:00.000000Z"}

    first, led = _election(api, "b")
    task = await _lead(first, led)

    assert first.leads
    assert first.competitor == ""
    await _end(task)


async def test_without_the_right_to_see_other_leases_the_operator_works(
    api: Api, leases: Leases
) -> None:
    """Law: without the right to see other Leases the operator works, as with an earlier version of the chart."""
    leases.forbidden = True
    first, led = _election(api, "a")

    task = await _lead(first, led)

    assert first.leads
    await _end(task)


async def test_namespaces_that_are_served_no_more_are_known_until_they_are_released(
    api: Api, leases: Leases
) -> None:
    """Law: a namespace that is no longer served stays known to each next holder until one has released its objects."""
    for serves, left in [
        (("shop", "bank"), set()),
        (("shop",), {"bank"}),
        (("shop", "park"), {"bank"}),
        (("park",), {"bank", "shop"}),
        ((), set()),
        (("shop",), {"*"}),
    ]:
        process, led = _election(api, "a", "ops", serves)
        task = await _lead(process, led)
        assert process.left == left
        await _end(task)

    process, led = _election(api, "a", "ops", ("shop",))
    task = await _lead(process, led)
    process.left = frozenset()
    await _end(task)
    process, led = _election(api, "a", "ops", ("shop",))
    task = await _lead(process, led)
    assert process.left == set()
    await _end(task)


async def test_a_namespace_of_another_operator_is_looked_after(api: Api) -> None:
    """Law: a namespace of another living operator is left alone; an operator that cannot see others lets nothing go."""
    first, led = _election(api, "a", "ops", ("shop",))
    one = await _lead(first, led)
    second, led = _election(api, "b", "elsewhere", ("bank",))
    other = await _lead(second, led)

    assert [second.is_looked_after(each) for each in ("shop", "bank", "park")] == [
        True,
        True,
        False,
    ]
    await _end(one)
    third, led = _election(api, "c", "third", ("park",))
    task = await _lead(third, led)
    assert [third.is_looked_after(each) for each in ("shop", "bank")] == [False, True]
    await _end(task)
    await _end(other)
