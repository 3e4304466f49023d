"""profiles.txt follows the site's profiles, and asrptd reads added ones without a restart."""

from pathlib import Path

import pytest

from slurm_asrpt.core.job import unprofiled
from slurm_asrpt.daemon.profile_names import FILE_NAME, ProfileNames
from slurm_asrpt.daemon.profiles import Profiles
from slurm_asrpt.profile.documents import load_document, load_named
from slurm_asrpt.profile.schema import format_profile, uncut_names


@pytest.fixture
def site(tmp_path: Path) -> Path:
    """A directory for the site's profiles."""
    (tmp_path / "profiles").mkdir()
    return tmp_path / "profiles"


def names_in(folder: Path) -> dict[str, int]:
    lines = (folder / FILE_NAME).read_text().split("\n")
    assert (lines[0], lines[-1]) == ("", "")
    return {name: int(gpus) for name, _, gpus in (line.partition("=") for line in lines[1:-1])}


def test_the_names_are_written_again_when_a_profile_is_added(tmp_path, site):
    names = ProfileNames([site], lambda name: load_named(name, [site]))
    profiles = Profiles(lambda name: load_named(name, [site]))
    assert names.write(tmp_path)
    assert not names.write(tmp_path)
    known = names_in(tmp_path)
    assert (known["bert-large"], known["bert-large-dp4"]) == (0, 4)
    assert profiles.get("mine", 4) == unprofiled(4)

    (site / "mine.toml").write_text(format_profile(load_document("bert-large-dp4", [])))
    (site / "broken.toml").write_text("no profile")
    assert names.write(tmp_path)
    assert names_in(tmp_path) == known | {"mine": 4, "broken": 0}
    assert profiles.get("mine", 4) == unprofiled(4)
    profiles.look_again()
    assert profiles.get("mine", 4).gpus == 4
    assert profiles.problems == {}


def test_a_broken_link_hides_no_change_of_other_profiles(tmp_path, site):
    names = ProfileNames([site], lambda name: load_named(name, [site]))
    (site / "moved.toml").symlink_to(tmp_path / "nowhere.toml")
    assert names.write(tmp_path)
    assert names_in(tmp_path)["moved"] == 0

    (site / "mine.toml").write_text(format_profile(load_document("bert-large-dp4", [])))
    assert names.write(tmp_path)
    assert names_in(tmp_path)["mine"] == 4
    (tmp_path / "nowhere.toml").write_text(format_profile(load_document("bert-large-dp2", [])))
    assert names.write(tmp_path)
    assert names_in(tmp_path)["moved"] == 2


def test_a_missing_directory_has_no_profiles(tmp_path, site):
    site.rmdir()
    assert ProfileNames([site], lambda name: load_named(name, [])).write(tmp_path)
    assert names_in(tmp_path)["bert-large"] == 0


def test_shipped_models_are_not_read_unless_the_site_has_others_of_that_name(tmp_path, site):
    read = []
    names = ProfileNames([site], lambda name: read.append(name) or load_named(name, [site]))
    assert names.write(tmp_path)
    assert set(uncut_names()).isdisjoint(read)
    assert {gpus for name, gpus in names_in(tmp_path).items() if name in uncut_names()} == {0}
    (site / "bert-large.toml").write_text(format_profile(load_document("bert-large-dp4", [])))
    assert names.write(tmp_path)
    assert names_in(tmp_path)["bert-large"] == 4
