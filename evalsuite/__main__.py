"""`python -m evalsuite` and the command `evalsuite`: the command line."""

import signal


def main() -> None:
    """Run the command line; Ctrl-C while it is loaded ends the process without a word, as Ctrl-C
    later does.
    """
    loud = signal.getsignal(signal.SIGINT) is signal.default_int_handler
    if loud:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    from evalsuite.cli import main as run

    if loud:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    run()


if __name__ == "__main__":
    main()
