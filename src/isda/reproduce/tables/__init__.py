"""The tables of the paper, one file each."""
