"""Loaded first by a server that processes are forked from: from here on, Ctrl-C ends it, and them,
without a word.

The program that started the server is told of Ctrl-C too, and answers it. See
`evalsuite.signals.start`. When that program is killed, the kernel ends the server: it would hear of
it on their line only after all that it imports.
"""

import os
import signal

from evalsuite.run.tree import die_with

if signal.getsignal(signal.SIGINT) != signal.SIG_IGN:  # as it is behind `&`
    signal.signal(signal.SIGINT, signal.SIG_DFL)
signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
if _program := os.environ.pop("EVALSUITE_DRIVER", ""):
    die_with(int(_program))
