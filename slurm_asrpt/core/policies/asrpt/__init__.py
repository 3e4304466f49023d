"""A-SRPT, the paper's Algorithm 1."""
