"""How a training is made from the user's code."""

import random
from pathlib import Path

import numpy as np

from slurm_asrpt.pool.training import load

CODE = """
import random
import numpy as np

class Drawn:
    tasks, rounds = 1, 1

    def __init__(self):
        self.weights = np.random.rand(), random.random()
"""


def test_what_a_factory_draws_does_not_depend_on_what_ran_before_in_the_process(tmp_path: Path) -> None:
    (tmp_path / "drawing_factory.py").write_text(CODE)
    made = []
    for draws in (0, 3):
        random.seed(draws)
        np.random.seed(draws)
        made.append(load("drawing_factory:Drawn", {}, tmp_path).weights)
    assert made[0] == made[1]
