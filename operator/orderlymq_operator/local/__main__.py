"""
A supervisor in its own process: `python -m orderlymq_operator.local --data-dir DIR`.

It continues with the state in the directory; `orderlymq up --detach` starts it.
"""

import argparse
import sys
from pathlib import Path

from orderlymq_operator.local.directory import DataDirectory
from orderlymq_operator.local.errors import LocalError, in_words
from orderlymq_operator.local.session import inherited, prepared, supervise
from orderlymq_operator.local.supervisor import CLOSE_MAX_S, Supervisor
from orderlymq_runtime.process import logs, loop


def main() -> int:
    """Supervise until a signal or `orderlymq down`; return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m orderlymq_operator.local")
    parser.add_argument("--data-dir", type=Path, required=True)
    parser.add_argument("--lock", type=int, help="File descriptor of the lock on the directory.")
    given = parser.parse_args()
    directory = DataDirectory(given.data_dir)
    logs.configure("INFO", "text", "supervisor")
    try:
        with (
            prepared(directory, [])
            if given.lock is None
            else inherited(directory, given.lock) as state
        ):

            async def supervised() -> None:
                await supervise(Supervisor(directory, state), directory)

            return loop.run(supervised(), close_max_s=CLOSE_MAX_S)
    except (LocalError, OSError) as error:
        text = in_words(error) if isinstance(error, OSError) else str(error)
        sys.stderr.write(f"{text}\n")
        return 1


if __name__ == "__main__":
    sys.exit(main())
