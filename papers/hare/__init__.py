"""Hare (Chen et al.): jobs that train in rounds on mixed GPUs, with known or unknown sizes."""
