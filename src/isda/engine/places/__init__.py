"""Where runs are made: processes of this machine, a Ray cluster, an array job of Slurm. A new place is a new file."""
