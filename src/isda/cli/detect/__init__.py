"""The commands ``isda detect COMMAND``, one file each."""
