"""``python -m isda``: the same as the command ``isda``."""

from isda.cli import main

main()
