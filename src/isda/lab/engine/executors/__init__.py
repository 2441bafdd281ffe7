"""Many runs at the same time: processes of this machine, Ray, or Slurm by submitit.

An executor has the interface of `concurrent.futures`: ``submit`` and ``shutdown``. `runs` opens the one that options
name, and gives it the runs.
"""
