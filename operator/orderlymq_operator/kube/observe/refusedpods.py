"""
Why a pod is missing: the API server's refusal to create it, such as by a quota or an admission rule.

Rules: only an event of the workload contains the refusal. The operator reads events only while a pod is missing. A
refusal that is older than the last successful creation does not count.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from orderlymq_operator.kube.api import Api
from orderlymq_operator.kube.errors import ApiError
from orderlymq_operator.kube.objects.ownership import owners
from orderlymq_operator.kube.observe.cluster import Live
from orderlymq_operator.kube.observe.drivers import driver_pod, workload_of
from orderlymq_operator.kube.resources import EVENTS, Json

_FAILED: Final = "FailedCreate"
_DONE: Final = "SuccessfulCreate"


async def refused_pod(api: Api, namespace: str, missing: Mapping[str, Sequence[str]]) -> str:
    """Return the newest refusal of a missing pod; empty if none is known.

    *missing* has, by the UID of the workload, words that occur in the events about its missing pods.
    """
    if not missing:
        return ""
    try:
        found = await api.list(EVENTS, namespace, fields=f"reason={_FAILED}")
        for event in sorted(found, key=_at, reverse=True):
            uid = event["involvedObject"].get("uid", "")
            text = event.get("message") or ""
            word = next((each for each in missing.get(uid, ()) if each in text), None)
            if word is None:
                continue
            chosen = f"involvedObject.uid={uid},reason={_DONE}"
            made = await api.list(EVENTS, namespace, fields=chosen)
            made = [each for each in made if f"create {word}" in each["message"] or not word]
            if all(_at(each) < _at(event) for each in made):
                return text
    except ApiError:
        return ""  # the text only explains; no decision depends on it
    return ""


async def refused_replica(api: Api, live: Live) -> str:
    """Return why a broker or name server has no pod; empty if no pod is missing or no event explains it."""
    missing, namespace = {}, ""
    for made in live.stateful_sets():
        meta = made["metadata"]
        pods = [f"{meta['name']}-{number}" for number in range(made["spec"]["replicas"])]
        words = [f"Pod {pod} in StatefulSet" for pod in pods if pod not in live.pods]
        if words:
            missing[meta["uid"]], namespace = words, meta["namespace"]
    return await refused_pod(api, namespace, missing)


async def refused_run(api: Api, made: Json | None, pods: Iterable[Json]) -> str:
    """Return why a workload of one pod has no living pod; empty if it has or needs none, or no event explains it."""
    if made is None:
        return ""
    known, uid = workload_of(made, None), made["metadata"]["uid"]
    if known.ended or known.suspended or known.deleting:
        return ""
    if any(uid in owners(pod, made["kind"]) and not driver_pod(pod).ended for pod in pods):
        return ""
    return await refused_pod(api, made["metadata"]["namespace"], {uid: ("",)})


def _at(event: Json) -> str:
    """Return when an event was seen last, as a text that sorts by time."""
    return str(event.get("lastTimestamp") or event["metadata"].get("creationTimestamp") or "")
