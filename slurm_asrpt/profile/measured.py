"""A shorter name: python -m slurm_asrpt.profile.measured is slurm_asrpt.profile.library_tools.measured."""

from slurm_asrpt.profile.library_tools.measured import main

if __name__ == "__main__":
    main()
