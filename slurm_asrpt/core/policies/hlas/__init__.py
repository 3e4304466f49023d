"""HLAS on a real cluster: least attained service first, by preemption."""
