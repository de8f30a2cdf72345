"""A Cluster changes its pods: labels, a variable, a volume, a sidecar, another user; they roll while messages flow."""

import yaml

from e2e.orders import Orders, kept
from e2e.space import Json, Space

BROKERS = "orderlymq.io/cluster=demo,app.kubernetes.io/component=broker"
READY = ("cluster/demo", "topic/orders", "consumergroup/billing")
# As OpenShift's restricted constraint chooses it: a user of the namespace's range, in group 0.
USER = 1_000_690_000
TEXT = "contact = orders"


def test_a_template_rolls_through_the_group_and_another_user_reads_the_same_volumes(
    space: Space, orders: Orders
) -> None:
    """Every pod is replaced once, never two together, and has the whole template; no message is lost or out of order."""
    settings: Json = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "agent"}}
    space.apply(yaml.safe_dump({**settings, "data": {"agent.conf": TEXT}}))
    space.example("quickstart.yaml")
    space.ready(*READY)
    orders.start()
    before = space.uids(BROKERS)

    space.patch("cluster/demo", {"podTemplate": _template(space.image)})

    fewest = space.rolled(BROKERS, before, timeout_s=300)
    space.ready(*READY)
    assert fewest >= len(before) - 1, "two replicas were away at once"
    orders.until_acknowledged(100)
    for pod in space.pods(BROKERS):
        _has_the_template(space, pod)
    kept(orders.finish())


def _template(image: str) -> Json:
    mount = {"name": "agent", "mountPath": "/etc/agent", "readOnly": True}
    return {
        "labels": {"team": "shop"},
        "annotations": {"example.com/contact": "orders@example.com"},
        "env": [{"name": "TZ", "value": "Europe/Berlin"}],
        "volumes": [{"name": "agent", "configMap": {"name": "agent"}}],
        "sidecars": [
            {
                "name": "agent",
                "image": image,
                "command": ["python", "-c", "import signal; signal.sigwait({15})"],
                "volumeMounts": [mount],
            }
        ],
        "securityContext": {"runAsUser": USER, "runAsGroup": 0, "fsGroup": USER},
    }


def _has_the_template(space: Space, pod: Json) -> None:
    name = pod["metadata"]["name"]
    assert pod["metadata"]["labels"]["team"] == "shop"
    assert pod["metadata"]["annotations"]["example.com/contact"] == "orders@example.com"

    def run(container: str, *words: str) -> str:
        return space.kubectl("exec", name, "-c", container, "--", *words).strip()

    assert run("broker", "printenv", "TZ") == "Europe/Berlin"
    assert (run("broker", "id", "-u"), run("broker", "id", "-g")) == (str(USER), "0")
    assert run("agent", "cat", "/etc/agent/agent.conf") == TEXT
