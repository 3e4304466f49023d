"""How many examples a property test takes."""

from hypothesis import settings


def examples(most: int) -> int:
    """``most`` where each run has other examples (make test-random, make fuzz), else a fifth, but 20 if it can be.

    Those of ``make test`` are the same in each run, so that more of them find little more.
    """
    return max(most // 5, min(most, 20)) if settings().derandomize else most
