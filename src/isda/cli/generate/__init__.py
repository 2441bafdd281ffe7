"""The commands ``isda generate COMMAND``, one file each."""
