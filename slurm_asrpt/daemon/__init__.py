"""asrptd: the control loop, its state, and what it records."""
