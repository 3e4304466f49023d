"""A disposable Slurm cluster on this machine, in one directory.

    from slurm_asrpt.lab.cluster import up, load
    from slurm_asrpt.lab.spec import LabSpec

This module imports nothing, and ``lab.train`` only the standard library: it runs inside jobs with the system's Python.
"""
