"""A disposable Slurm cluster on this machine, in one directory.

    from slurm_asrpt.lab.cluster import up, load
    from slurm_asrpt.lab.spec import LabSpec

This module imports nothing, and ``lab.train`` with ``lab.allocation`` only the standard library: they run inside jobs
with the system's Python.
"""
