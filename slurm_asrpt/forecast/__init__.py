"""When waiting jobs will start: the policy itself, played forward over what is predicted. Pure, but for __main__."""
