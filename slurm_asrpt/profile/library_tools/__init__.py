"""Scripts that generate or measure the shipped profiles.

Only tests and benchmarks import this package, so an installation may leave it out. To run the scripts:

    python -m slurm_asrpt.profile.library_tools.table1 [FOLDER]     write profile/library, from architectures.py
    python -m slurm_asrpt.profile.library_tools.analytic [FOLDER]   write profile/uncut, from architectures.py
    python -m slurm_asrpt.profile.library_tools.measured [MODEL]... measure torch_models.py on a GPU; adds to uncut

Run the first two after a change in architectures.py; a test holds that the shipped files are what they write.
"""
