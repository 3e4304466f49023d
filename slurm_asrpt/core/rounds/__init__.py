"""Jobs that train in rounds on mixed GPUs, with sizes that nobody may know (Hare, Chen et al., IEEE TCC 2024)."""
