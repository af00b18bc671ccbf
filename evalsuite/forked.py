"""Loaded first by a server that processes are forked from: from here on, Ctrl-C ends it, and them, without a word.

The program that started the server is told of Ctrl-C too, and answers it. See `evalsuite.signals.start`.
"""

import signal

if signal.getsignal(signal.SIGINT) != signal.SIG_IGN:  # as it is behind `&`
    signal.signal(signal.SIGINT, signal.SIG_DFL)
signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
