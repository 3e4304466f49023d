"""A throw-away real Slurm cluster on this machine, under one directory.

    from slurm_asrpt.lab.cluster import up, load
    from slurm_asrpt.lab.spec import LabSpec

Nothing is imported here, and nothing in this package needs more than the standard library: ``lab.train`` runs inside
jobs with the system's own Python.
"""
