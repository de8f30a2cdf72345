"""Without /proc, only a client that names its process can be proven dead."""

import os

from orderlymq_broker.server.clientdeath.portablesockets import View, proof_of_death
from orderlymq_broker.server.clientdeath.sockets import Holding, Process
from tests.broker.server.clientdeath.children import client, listening


def test_the_named_process_counts_when_it_holds_the_other_end() -> None:
    """Law: the named process counts if it holds the other end of the connection; without a name nothing is known."""
    with listening() as broker, client(broker) as process:
        (end,) = broker.ends

        found = View().client_of(end, process.pid)

        assert found == Holding("", frozenset({Process(process.pid, 0, 0)}))
        assert isinstance(View().client_of(end, os.getpid()), str)
        assert isinstance(View().client_of(end, 2**22 + 1), str)
        assert isinstance(View().client_of(end, None), str)
        assert not View().is_held(found)


def test_a_process_is_dead_when_it_is_gone_or_a_zombie() -> None:
    """Law: a process is dead if it is gone or a zombie; a later process with its number counts as alive."""
    with listening() as broker, client(broker) as process:
        owner = Process(process.pid, 0, 0)
        assert proof_of_death(owner) is None

        process.kill()
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
        assert "not collected" in (proof_of_death(owner) or "")

        process.wait()
        assert "does not exist" in (proof_of_death(owner) or "")
