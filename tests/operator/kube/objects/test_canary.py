"""The canary's objects: one pod for all broker groups, with the operator's account and the Cluster's TLS."""

from typing import Any

from orderlymq_operator.canary.command import canary as command
from orderlymq_operator.canary.verdict import STARTING
from orderlymq_operator.kube.objects import canary, network
from orderlymq_operator.kube.objects.cluster import kube_revision, name_server_revision
from orderlymq_operator.kube.resources import Json
from orderlymq_operator.resources.conditions.canary import REASONS
from orderlymq_operator.resources.conditions.table import BY_NAME
from orderlymq_operator.resources.kinds import Cluster
from tests.operator.kube.samples import IMAGE, NAMESPACE, cluster

TLS = {"mode": "Enforcing", "secretName": "demo-tls"}


def made(**spec: Any) -> Cluster:
    return cluster(canary={"enabled": True}, **spec)


def deployment(wanted: Cluster) -> Json:
    (found,) = canary.canary_objects(wanted, image=IMAGE, pull_policy="Always")
    return found


def container(wanted: Cluster) -> Json:
    (found,) = deployment(wanted)["spec"]["template"]["spec"]["containers"]
    return dict(found)


def test_a_cluster_has_no_canary_unless_it_says_so() -> None:
    assert canary.canary_objects(cluster(), image=IMAGE, pull_policy="Always") == []


def test_the_command_reads_what_the_pod_is_started_with() -> None:
    """Law: the pod's command has times, objective and all broker groups of the Cluster, registered or not."""
    wanted = cluster(
        groups=2, canary={"enabled": True, "interval": "500ms", "objectivePpm": 995_000}
    )
    found = command.make_context("canary", container(wanted)["command"][3:]).params

    assert found["name_server"].split(";")[0] == (
        f"demo-nameserver-0.demo-nameserver.{NAMESPACE}.svc:9876"
    )
    assert (found["interval"], found["target"], found["takeover"]) == (0.5, 1.0, 60.0)
    assert (found["objective"], found["hold"]) == (0.995, 900.0)
    assert found["groups"] == ("demo-0", "demo-1")
    assert (found["listen"], found["port"]) == ("::", 9871)


def test_it_leaves_groups_alone_that_are_to_go() -> None:
    """Law: the canary skips broker groups that are to be removed; the loss of its messages there is no trouble."""
    (found,) = canary.canary_objects(
        made(groups=3), image=IMAGE, pull_policy="Always", draining={"demo-2"}
    )
    template = found["spec"]["template"]
    command = template["spec"]["containers"][0]["command"]

    assert [each for each in command if each.startswith("demo-")][-2:] == ["demo-0", "demo-1"]
    assert template["metadata"]["annotations"] == {"orderlymq.io/broker-groups": "demo-0,demo-1"}


def test_it_signs_as_the_operator_and_asks_no_api_server() -> None:
    variables = {each["name"]: each for each in container(made(tls=TLS))["env"]}
    pod = deployment(made())["spec"]["template"]["spec"]

    assert variables["ORDERLYMQ_SECRET_KEY"]["valueFrom"]["secretKeyRef"]["name"] == "demo-operator"
    assert variables["ORDERLYMQ_TLS_CA"]["value"] == "/etc/orderlymq-tls/ca.crt"
    assert pod["automountServiceAccountToken"] is False


def test_there_is_one_and_it_is_never_ended_for_a_broken_order() -> None:
    """Law: there is one canary, because two would disturb each other; its liveness does not depend on the verdict."""
    spec = deployment(made())["spec"]

    assert (spec["replicas"], spec["strategy"]) == (1, {"type": "Recreate"})
    assert container(made())["livenessProbe"]["httpGet"]["path"] == "/healthz"


def test_switching_it_restarts_no_broker_and_no_name_server() -> None:
    for revision in (kube_revision, name_server_revision):
        assert revision(cluster(), IMAGE) == revision(made(), IMAGE)


def test_only_the_operator_and_the_monitoring_reach_its_pages() -> None:
    """Law: only operator and monitoring reach its pages, and only if the Cluster has network policies."""
    monitoring = {"monitoring": [{"namespace": "watch"}]}
    policies = {
        each["metadata"]["name"]: each
        for each in network.policy_objects(made(network=monitoring), "system")
    }
    (rule,) = policies["demo-canary"]["spec"]["ingress"]

    assert rule["ports"] == [{"port": 9871, "protocol": "TCP"}]
    assert [each["namespaceSelector"]["matchLabels"] for each in rule["from"]] == [
        {"kubernetes.io/metadata.name": "system"},
        {"kubernetes.io/metadata.name": "watch"},
    ]
    assert "demo-canary" not in str(network.policy_objects(cluster(), "system"))
    assert network.policy_objects(made(network={"policies": False}), "system") == []


def test_every_verdict_is_a_reason_of_the_condition() -> None:
    assert {reason.name for reason in REASONS} <= set(BY_NAME)
    assert STARTING in BY_NAME
