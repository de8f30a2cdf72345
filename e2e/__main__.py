"""
Prepare the environment of the scenarios with ``python -m e2e prepare``; ``python -m e2e remove`` removes it again.

The scenarios make missing parts themselves. CI prepares in parallel to other tests, and removes the cluster so
that its idle pods take no CPU time from the steps that follow. A cluster that KUBECONFIG names stays.
"""

import os
import sys

from e2e.conftest import NO_KUBERNETES
from e2e.machine import MachineError, find, say
from e2e.space import EXAMPLE_IMAGE


def main(task: str) -> int:
    """Return 0 on success, 40 if no Kubernetes can be made."""
    try:
        machine = find()
        if task == "prepare":
            say(f"building {EXAMPLE_IMAGE}")
            machine.build(EXAMPLE_IMAGE)
        elif machine.kind and not os.environ.get("KUBECONFIG"):
            machine.run("kind", "delete", "cluster", "--name", machine.kind)
    except MachineError as error:
        say(str(error))
        return NO_KUBERNETES
    return 0


if __name__ == "__main__":
    if sys.argv[1:] not in (["prepare"], ["remove"]):
        sys.exit("usage: python -m e2e prepare | remove")
    sys.exit(main(sys.argv[1]))
