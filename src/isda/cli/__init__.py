"""The command line: ``isda COMMAND``, also as ``python -m isda COMMAND``. One file per command.

Each command is a function with typed arguments; what it needs is imported when it runs, so that ``isda --help`` is
quick.
"""

from isda.cli.main import main

__all__ = ["main"]
