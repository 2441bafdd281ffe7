"""``python -m isda`` and the command ``isda``."""

import signal
import sys


def run() -> None:
    """The process of a command: Ctrl-C ends it quietly from the first import to the last."""
    try:
        from isda.lab.cli import main

        main()
    except KeyboardInterrupt:  # before the command has begun
        sys.exit(128 + signal.SIGINT)
    finally:
        # The command has ended: an interruption now would only print a traceback.
        signal.signal(signal.SIGINT, signal.SIG_DFL)


if __name__ == "__main__":
    run()
