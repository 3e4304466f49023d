"""Start times of waiting jobs, from simulations of the policy into the future. Pure, except for __main__."""
