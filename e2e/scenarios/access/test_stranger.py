"""A pod without any identity in the namespace of a Cluster: it reaches every port and gets nothing."""

import json

import pytest
import yaml

from e2e.orders import Orders, kept
from e2e.space import Space

BROKERS = "orderlymq.io/cluster=demo,app.kubernetes.io/component=broker"
READY = ("cluster/demo", "topic/orders", "consumergroup/billing")
# The size of the answer of a TLS port to a peer that does not speak TLS.
ALERT_SIZE = 7
# Takes the addresses of the replicas, a name server and the leader's service; prints the result of each attack as JSON.
_ATTACKS = """
import asyncio, json, ssl, sys
from orderlymq_protocol.codes import RequestCode
from orderlymq_protocol.frame.command import request
from orderlymq_runtime.remoting.client import RemotingClient, RemotingError

async def heard(address, tls):
    # How many bytes a replica's port says to somebody without a certificate and a proof; -1 where it cannot be reached.
    host, _, port = address.rpartition(":")
    try:
        async with asyncio.timeout(20):
            _, writer = await asyncio.open_connection(host, int(port))
            writer.close()
    except OSError:
        return -1
    try:
        async with asyncio.timeout(20):
            name = "" if tls else None
            reader, writer = await asyncio.open_connection(host, int(port), ssl=tls, server_hostname=name)
            writer.write(b"\\x00\\x00\\x00\\x10" + b"append entries..")
            await writer.drain()
            return len(await reader.read(1 << 16))
    except (OSError, ssl.SSLError):
        return 0

async def main(replicas, name_server, broker):
    unchecked = ssl.create_default_context()
    unchecked.check_hostname, unchecked.verify_mode = False, ssl.CERT_NONE
    found = {f"{each} {kind}": await heard(each, tls) for each in replicas for kind, tls in (("plain", None), ("TLS", unchecked))}
    client = RemotingClient()
    identity = {"brokerName": "demo-0", "brokerAddr": "10.6.6.6:10911", "clusterName": "demo", "brokerId": "0"}
    for where, code, ext in (
        (name_server, RequestCode.REGISTER_BROKER, {**identity, "haServerAddr": "10.6.6.6:10912"}),
        (name_server, RequestCode.UNREGISTER_BROKER, identity),
        (name_server, RequestCode.WIPE_WRITE_PERM_OF_BROKER, {"brokerName": "demo-0"}),
        (broker, RequestCode.ORDERLYMQ_CHANGE_MEMBERSHIP, {"voters": "1"}),
        (broker, RequestCode.ORDERLYMQ_TRANSFER_LEADERSHIP, {"target": "2"}),
        (broker, RequestCode.ORDERLYMQ_CLIENT_DEAD, {"clientId": "any", "proof": "none", "operatorToken": "1"}),
    ):
        try:
            answer = await client.invoke(where, request(code, ext), 30.0)
            found[code.name] = answer.code
        except RemotingError as error:
            found[code.name] = str(error)
    await client.close()
    print(json.dumps(found))

asyncio.run(main(sys.argv[3:], sys.argv[1], sys.argv[2]))
"""


@pytest.mark.timeout(600)
@pytest.mark.ci
def test_a_pod_without_an_identity_changes_nothing(space: Space, orders: Orders) -> None:
    """The pod sends requests of a replica, a broker and an operator, while messages flow in order."""
    space.example("quickstart.yaml")
    space.ready(*READY)
    orders.start()
    before = space.uids(BROKERS)
    replicas = [f"{pod['status']['podIP']}:12910" for pod in space.pods(BROKERS)]

    got = _attack(space, "demo-nameserver:9876", "demo-0:10911", *replicas)

    heard = {each: got.pop(each) for each in list(got) if " " in each}
    assert len(heard) == 2 * len(replicas)
    assert all(each in range(ALERT_SIZE + 1) for each in heard.values()), (
        heard
    )  # -1: it was not reached
    assert len(got) == 6
    assert all(isinstance(code, int) and code > 0 for code in got.values()), got
    # The leader is not compared, because brokers on an overloaded machine elect new ones.
    assert space.uids(BROKERS) == before
    kept(orders.finish())


def _attack(space: Space, *addresses: str) -> dict[str, object]:
    """Run the attacks in a pod that has only the image."""
    container = {"name": "stranger", "image": space.image, "command": ["sleep", "600"]}
    spec = {
        "containers": [container],
        "automountServiceAccountToken": False,
        "terminationGracePeriodSeconds": 0,
    }
    made = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "stranger"}, "spec": spec}
    space.apply(yaml.safe_dump(made))
    space.kubectl("wait", "pod/stranger", "--for=condition=Ready", "--timeout=60s")
    text = space.kubectl(
        "exec", "stranger", "--", "python", "-c", _ATTACKS, *addresses, timeout_s=200
    )
    found: dict[str, object] = json.loads(text)
    return found
