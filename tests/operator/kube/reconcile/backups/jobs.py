"""Jobs of `orderlymq backup` as Kubernetes ends them, and the reports of their pods."""

import json
from typing import Any

from orderlymq_operator.kube.resources import JOBS, PODS, Json
from tests.operator.kube.objectserver import ObjectServer
from tests.operator.kube.samples import NAMESPACE, pod

ID = "20260101T000000000Z-00000000"


def report(**change: Any) -> Json:
    """Return the report of a pod that made or found a backup."""
    return {
        "id": ID,
        "cluster": "demo",
        "beganMs": 1_767_225_600_000,
        "endedMs": 1_767_225_660_000,
        "spreadMs": 4,
        "salvaged": False,
        "verified": True,
        "sizeBytes": 300,
        "newBytes": 200,
        "files": 9,
        "groups": [["0", 7, 1_767_225_601_000, 300]],
        **change,
    }


def end_job(
    server: ObjectServer,
    name: str,
    said: Json | str,
    *,
    failed: int = 0,
    injected: tuple[Json, ...] = (),
) -> None:
    """End a Job: with a report it is complete, with a text or an error it has failed.

    *injected* are statuses of containers before its own.
    """
    job = server.find(JOBS, NAMESPACE, name)
    assert job is not None, f"there is no Job {name}"
    good = isinstance(said, dict) and "id" in said
    text = said if isinstance(said, str) else json.dumps(said)
    state = {"terminated": {"exitCode": 0 if good else 1, "reason": "Error", "message": text}}
    owner = {"kind": "Job", "name": name, "uid": job["metadata"]["uid"]}
    server.put(
        PODS,
        {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {
                "name": f"{name}-x{failed}",
                "namespace": NAMESPACE,
                "labels": job["spec"]["template"]["metadata"]["labels"],
                "ownerReferences": [owner],
            },
            "spec": {},
            "status": {
                "phase": "Succeeded" if good else "Failed",
                "containerStatuses": [*injected, {"name": "backup", "state": state}],
            },
        },
    )
    kind = "Complete" if good else "Failed"
    status = {"failed": failed, "conditions": [{"type": kind, "status": "True"}]}
    server.put(JOBS, {**job, "status": status})


def lack_image(server: ObjectServer, name: str) -> None:
    """Let a Job's pod wait for an image that cannot be pulled."""
    job = server.find(JOBS, NAMESPACE, name)
    assert job is not None, f"there is no Job {name}"
    waiting = {"waiting": {"reason": "ImagePullBackOff"}}
    made = pod(
        f"{name}-x",
        phase="Pending",
        podIP="",
        containerStatuses=[{"name": "backup", "image": "lost:1", "state": waiting}],
    )
    made["metadata"] |= {
        "labels": job["spec"]["template"]["metadata"]["labels"],
        "ownerReferences": [{"kind": "Job", "name": name, "uid": job["metadata"]["uid"]}],
    }
    server.put(PODS, made)


def image_of(server: ObjectServer, name: str) -> str:
    """Return the image of a Job's pods; empty if there is no such Job."""
    job = server.find(JOBS, NAMESPACE, name)
    return job["spec"]["template"]["spec"]["containers"][0]["image"] if job is not None else ""


def jobs(server: ObjectServer) -> list[str]:
    """Return the names of all Jobs."""
    return sorted(
        found["metadata"]["name"] for found in server.objects.values() if found.get("kind") == "Job"
    )


def rename_job(server: ObjectServer, name: str, new: str) -> None:
    """Let a Job have been made under another name."""
    job = server.find(JOBS, NAMESPACE, name)
    assert job is not None, f"there is no Job {name}"
    server.drop(JOBS, NAMESPACE, name)
    server.put(JOBS, {**job, "metadata": {**job["metadata"], "name": new}})
