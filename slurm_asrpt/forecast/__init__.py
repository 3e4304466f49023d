"""Start times of waiting jobs: the policy itself, simulated into the future. Pure, except for __main__."""
