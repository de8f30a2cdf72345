"""``python -m orderlymq_backup``: the commands of `orderlymq backup`, for programs and pods that start them."""

import signal

from orderlymq_backup.command import backup

if __name__ == "__main__":
    # A pod that is told to end gives its copies back and takes away the mark of a running backup.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    backup(prog_name="orderlymq backup")
