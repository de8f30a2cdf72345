"""``python -m orderlymq_backup``: the commands of `orderlymq backup`, for programs and pods that start them."""

from orderlymq_backup.command import backup

if __name__ == "__main__":
    backup(prog_name="orderlymq backup")
