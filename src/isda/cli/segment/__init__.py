"""The commands ``isda segment COMMAND``, one file each."""
