"""The console's objects: one pod with accounts, the operator's account and the Cluster's TLS."""

from dataclasses import replace
from typing import Any

import pytest
from pydantic import ValidationError

from orderlymq_console.command import console as command
from orderlymq_operator.kube.objects import names
from orderlymq_operator.kube.objects.cluster import kube_revision, name_server_revision
from orderlymq_operator.kube.objects.console import console_objects
from orderlymq_operator.kube.reconcile.desiredobjects import accessory_objects
from orderlymq_operator.kube.resources import Json
from orderlymq_operator.resources.cluster.console import Console
from orderlymq_operator.resources.kinds import Cluster
from tests.operator.kube.samples import IMAGE, NAMESPACE, cluster, environment

HTTPS_HOSTS = "ORDERLYMQ_CONSOLE_HTTPS_HOSTS"
ACCOUNTS = {"secretName": "who-may-look"}
TLS = {"mode": "Enforcing", "secretName": "demo-tls"}


def made(**console: Any) -> Cluster:
    return cluster(console={"enabled": True, "accounts": ACCOUNTS, **console})


def objects(wanted: Cluster) -> dict[str, Json]:
    found = console_objects(wanted, image=IMAGE, pull_policy="IfNotPresent")
    return {each["kind"]: each for each in found}


def container(wanted: Cluster) -> Json:
    (found,) = objects(wanted)["Deployment"]["spec"]["template"]["spec"]["containers"]
    return dict(found)


def options(wanted: Cluster) -> dict[str, Any]:
    """Return the options that the command reads from the pod's spec."""
    arguments = container(wanted)["command"][3:]
    return command.make_context("console", list(arguments)).params


def test_a_cluster_has_no_console_unless_it_says_so() -> None:
    assert console_objects(cluster(), image=IMAGE, pull_policy="Always") == []


def test_a_console_without_accounts_is_refused() -> None:
    """Law: a console without accounts is refused, because the whole network reaches it."""
    with pytest.raises(ValidationError, match=r"needs console\.accounts"):
        Console.model_validate({"enabled": True})


def test_the_command_reads_what_the_pod_is_started_with() -> None:
    """Law: the pod's command has name servers, accounts, and every name by which Service and Ingress reach it."""
    wanted = made(hosts=["console.example"], ingress={"host": "orders.example"}, readOnly=True)
    found = options(wanted)

    assert found["name_server"].split(";")[0] == (
        f"demo-nameserver-0.demo-nameserver.{NAMESPACE}.svc:9876"
    )
    assert found["listen"] == "0.0.0.0:9870"
    assert str(found["accounts"]) == "/etc/orderlymq-accounts/accounts.toml"
    assert found["hosts"] == (
        "demo-console",
        f"demo-console.{NAMESPACE}",
        f"demo-console.{NAMESPACE}.svc",
        "console.example",
        "orders.example",
    )
    assert found["https_hosts"] == ()
    assert found["read_only"] is True
    assert (found["tls_certificate"], options(made())["read_only"]) == (None, False)


@pytest.mark.parametrize(
    ("address", "listen"), [("10.96.0.7", "0.0.0.0:9870"), ("fd00:96::7", "[::]:9870")]
)
def test_the_console_listens_in_the_family_of_the_services(address: str, listen: str) -> None:
    """Law: the console listens in the Services' address family, so that kubelet reaches it with IPv6 only."""
    wanted = made()
    given = environment(wanted)
    forms = {name: replace(form, address=address) for name, form in given.groups.items()}

    found = accessory_objects(wanted, replace(given, groups=forms))

    (deployment,) = (each for each in found if each["kind"] == "Deployment")
    words = deployment["spec"]["template"]["spec"]["containers"][0]["command"]
    assert words[words.index("--listen") + 1] == listen


def test_sessions_under_the_name_of_an_ingress_with_tls_are_for_tls_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Law: behind an Ingress with TLS, sessions under its name are for TLS only, although the console speaks none."""
    wanted = made(ingress={"host": "orders.example", "tlsSecretName": "orders-tls"})
    variables = {each["name"]: each.get("value") for each in container(wanted)["env"]}
    monkeypatch.setenv(HTTPS_HOSTS, str(variables[HTTPS_HOSTS]))

    assert options(wanted)["https_hosts"] == ("orders.example",)


def test_the_console_of_an_earlier_image_starts_behind_an_ingress_with_tls() -> None:
    """Law: an older console image (`onOperatorUpgrade: Keep`) gets no option that it lacks."""
    behind_tls, plain = (
        container(made(ingress={"host": "orders.example", **tls}))["command"]
        for tls in ({"tlsSecretName": "orders-tls"}, {})
    )

    assert "--https-host" not in behind_tls
    assert behind_tls == plain


def test_it_signs_as_the_operator() -> None:
    """Law: the console signs its requests with the secret from the operator's own Secret."""
    variables = {each["name"]: each for each in container(made())["env"]}

    assert variables["ORDERLYMQ_SECRET_KEY"]["valueFrom"]["secretKeyRef"]["name"] == "demo-operator"
    assert "ORDERLYMQ_TLS" not in variables


def test_of_the_api_server_it_asks_pipelines_and_pods_of_its_namespace_alone() -> None:
    """Law: its own account may only read pipelines and pods of its namespace."""
    found = objects(made())
    pod = found["Deployment"]["spec"]["template"]["spec"]

    assert found["Role"]["rules"] == [
        {"apiGroups": ["orderlymq.io"], "resources": ["pipelines"], "verbs": ["list"]},
        {"apiGroups": [""], "resources": ["pods"], "verbs": ["list"]},
    ]
    assert found["RoleBinding"]["roleRef"]["name"] == found["Role"]["metadata"]["name"]
    (subject,) = found["RoleBinding"]["subjects"]
    assert subject["name"] == pod["serviceAccountName"] == "demo-console"
    assert found["ServiceAccount"]["metadata"]["name"] == "demo-console"
    assert pod["automountServiceAccountToken"] is False
    (mount,) = [each for each in container(made())["volumeMounts"] if each["name"] == "token"]
    assert mount["mountPath"] == "/var/run/secrets/kubernetes.io/serviceaccount"
    assert options(made())["pipelines_of"] == f"{NAMESPACE}/demo"


def test_tls_is_the_clusters_in_both_directions() -> None:
    """Law: it uses the Cluster's TLS towards brokers, browsers and kubelet's probes."""
    wanted = cluster(console={"enabled": True, "accounts": ACCOUNTS}, tls=TLS)
    variables = {each["name"]: each.get("value") for each in container(wanted)["env"]}

    assert (variables["ORDERLYMQ_TLS"], variables["ORDERLYMQ_TLS_CA"]) == (
        "true",
        "/etc/orderlymq-tls/ca.crt",
    )
    assert str(options(wanted)["tls_key"]) == "/etc/orderlymq-tls/tls.key"
    assert container(wanted)["readinessProbe"]["httpGet"]["scheme"] == "HTTPS"


def test_its_pod_is_restricted_and_there_is_one() -> None:
    """Law: its pod is restricted like brokers', and there is one, because each console knows only its own sessions."""
    spec = objects(made())["Deployment"]["spec"]
    pod = spec["template"]["spec"]

    assert (spec["replicas"], spec["strategy"]) == (1, {"type": "Recreate"})
    assert pod["securityContext"]["runAsNonRoot"] is True
    assert container(made())["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }


def test_service_and_ingress_lead_to_it() -> None:
    """Law: the Ingress has the wanted class, certificate and annotations and leads to the Service."""
    ingress = {
        "host": "orders.example",
        "className": "nginx",
        "tlsSecretName": "orders-tls",
        "annotations": {"nginx.ingress.kubernetes.io/backend-protocol": "HTTPS"},
    }
    found = objects(made(ingress=ingress))
    pod_labels = found["Deployment"]["spec"]["template"]["metadata"]["labels"]

    rights = {"ServiceAccount", "Role", "RoleBinding"}
    assert set(found) == {"Deployment", "Service", "Ingress", *rights}
    assert found["Service"]["spec"]["selector"].items() <= pod_labels.items()
    assert found["Service"]["spec"]["selector"] == names.selector(made(), "console")
    spec = found["Ingress"]["spec"]
    assert (spec["ingressClassName"], spec["tls"]) == (
        "nginx",
        [{"hosts": ["orders.example"], "secretName": "orders-tls"}],
    )
    (rule,) = spec["rules"]
    assert rule["http"]["paths"][0]["backend"]["service"] == {
        "name": "demo-console",
        "port": {"name": "http"},
    }
    assert found["Ingress"]["metadata"]["annotations"] == ingress["annotations"]


def test_the_port_of_the_service_says_by_its_name_what_it_speaks() -> None:
    """Law: the Service's port is named https if the console speaks TLS, because Traefik and Istio read the name."""

    def ports(**spec: Any) -> tuple[str, str]:
        console = {"enabled": True, "accounts": ACCOUNTS, "ingress": {"host": "orders.example"}}
        found = objects(cluster(console=console, **spec))
        (rule,) = found["Ingress"]["spec"]["rules"]
        (port,) = found["Service"]["spec"]["ports"]
        return port["name"], rule["http"]["paths"][0]["backend"]["service"]["port"]["name"]

    assert (ports(tls=TLS), ports()) == (("https", "https"), ("http", "http"))


def test_switching_it_restarts_no_broker_and_no_name_server() -> None:
    for revision in (kube_revision, name_server_revision):
        assert revision(cluster(), IMAGE) == revision(made(), IMAGE)


def test_its_objects_go_with_the_cluster() -> None:
    for each in console_objects(made(ingress={"host": "a.b"}), image=IMAGE, pull_policy="Always"):
        (owner,) = each["metadata"]["ownerReferences"]
        assert (owner["kind"], owner["name"]) == ("Cluster", "demo")
