"""
Why a pod is missing: what the API server said when Kubernetes was to make it, as of a quota or of an admission rule.

Rule: only an event of the workload says so, and only while a pod is missing somebody looks. A pod that was made since is not
missing for that.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from orderlymq_operator.kube.api import Api, ApiError
from orderlymq_operator.kube.objects.ownership import owners
from orderlymq_operator.kube.observe.cluster import Live
from orderlymq_operator.kube.observe.drivers import driver_pod, workload_of
from orderlymq_operator.kube.resources import EVENTS, Json

_FAILED: Final = "FailedCreate"
_DONE: Final = "SuccessfulCreate"


async def refused_pod(api: Api, namespace: str, missing: Mapping[str, Sequence[str]]) -> str:
    """Return the newest refusal of a missing pod; empty where none is known.

    *missing* has what events about such pods contain, by the UID of their workload.
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
        return ""  # it explains, and nothing is decided by it
    return ""


async def refused_replica(api: Api, live: Live) -> str:
    """Return why a broker or name server has no pod; empty where none is missing, or nobody says."""
    missing, namespace = {}, ""
    for made in live.stateful_sets():
        meta = made["metadata"]
        pods = [f"{meta['name']}-{number}" for number in range(made["spec"]["replicas"])]
        words = [f"Pod {pod} in StatefulSet" for pod in pods if pod not in live.pods]
        if words:
            missing[meta["uid"]], namespace = words, meta["namespace"]
    return await refused_pod(api, namespace, missing)


async def refused_run(api: Api, made: Json | None, pods: Iterable[Json]) -> str:
    """Return why a workload of one pod has none that lives; empty where it has one or needs none, or nobody says."""
    if made is None:
        return ""
    known, uid = workload_of(made, None), made["metadata"]["uid"]
    if known.ended or known.suspended or known.deleting:
        return ""
    if any(uid in owners(pod, made["kind"]) and not driver_pod(pod).ended for pod in pods):
        return ""
    return await refused_pod(api, made["metadata"]["namespace"], {uid: ("",)})


def _at(event: Json) -> str:
    """Return when an event was seen last; such times order as texts."""
    return str(event.get("lastTimestamp") or event["metadata"].get("creationTimestamp") or "")
