"""The command line ``isda COMMAND``, also ``python -m isda COMMAND``.

A command is a typed function. It imports what it needs when it runs, which keeps ``isda --help`` fast.
"""

from isda.lab.cli.main import main

__all__ = ["main"]
