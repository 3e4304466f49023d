"""HLAS on a real cluster: least attained service first, with preemption."""
