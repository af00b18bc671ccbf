"""Runs as a process of its own: when the run that started it dies, in whatever way, it kills the jobs left behind.

It reads "+PID" and "-PID" lines, the process groups that live; the end of its input is the death of the run. A thread
in the jobs could not do this: it does not run while C code holds the interpreter's lock.
"""

import contextlib
import os
import signal
import sys


def main() -> None:
    """Keep the list; at the end of the input, kill what is on it."""
    for name in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(name, signal.SIG_IGN)
    groups: set[int] = set()
    for line in sys.stdin:
        (groups.add if line[0] == "+" else groups.discard)(int(line[1:]))
    for group in groups:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(group, signal.SIGKILL)


if __name__ == "__main__":
    main()
