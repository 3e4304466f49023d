"""Dependencies as Slurm 22.05 shows them, in words."""

import pytest

from slurm_asrpt.status.dependency_texts import awaited
from slurm_asrpt.status.reason_texts import in_words


@pytest.mark.parametrize(
    ("dependency", "text"),
    [
        ("afterok:9(unfulfilled)", "job 9 to complete with exit code 0"),
        ("afterany:34_1(unfulfilled)", "job 34_1 to end"),
        ("afternotok:35(failed)", "job 35 to fail"),
        ("after:35(unfulfilled)", "job 35 to start"),
        ("after:34_*+5(unfulfilled)", "array 34 to have run for 5 min"),
        ("aftercorr:34_*(unfulfilled)", "the same task of array 34 to complete with exit code 0"),
        (
            "afterok:35(unfulfilled)?afterany:34_*(unfulfilled)",
            "job 35 to complete with exit code 0 or array 34 to end",
        ),
        (
            "afterany:35(unfulfilled),singleton(unfulfilled)",
            "job 35 to end and the owner's earlier jobs of the same name to end",
        ),
        (",".join(f"after:{job}(unfulfilled)" for job in range(1, 6)), "job 1 to start and job 2 to start and "
         "job 3 to start and 2 more"),
        ("later:9(unfulfilled)", "later:9"),
    ],
)  # fmt: skip
def test_a_dependency_names_the_jobs(dependency: str, text: str) -> None:
    assert awaited(dependency) == text
    assert in_words("dependency", {"dependency": dependency}) == f"waits for {text}"


def test_a_dependency_that_slurm_does_not_show_is_still_named_as_one() -> None:
    assert in_words("dependency", {}) == "waits for its dependency"
