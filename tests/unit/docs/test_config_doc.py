"""etc/asrpt.toml, man/asrpt.toml.5 and docs/settings.md are generated from the settings and document all of them."""

import math
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from pydantic import ValidationError

from slurm_asrpt.config import reference
from slurm_asrpt.config.settings import Settings, load_settings, parse_settings

ROOT = Path(__file__).parents[3]
EXAMPLE = ROOT / "etc" / "asrpt.toml"
NAMES = [(name, key) for name, _, settings in reference.sections() for key in [setting.name for setting in settings]]


def uncommented(text: str) -> str:
    return re.sub(r"^#(\w+ = )", r"\1", text, flags=re.MULTILINE)


def test_the_files_equal_the_generators_output(tmp_path: Path) -> None:
    for name in ("etc", "man", "docs"):
        (tmp_path / name).mkdir()
    reference.write(tmp_path)
    for name in ("etc/asrpt.toml", "man/asrpt.toml.5", "docs/settings.md"):
        assert (ROOT / name).read_text() == (tmp_path / name).read_text(), "run python -m slurm_asrpt.config.reference"


def test_the_example_equals_the_defaults() -> None:
    assert load_settings(EXAMPLE) == Settings()


def test_the_commented_values_are_the_defaults() -> None:
    raw = tomllib.loads(uncommented(EXAMPLE.read_text()))
    assert parse_settings(raw, "example") == Settings()
    assert [(name, key) for name, table in raw.items() for key in table] == NAMES


def test_every_setting_has_a_description() -> None:
    for name, text, settings in reference.sections():
        assert text.endswith("."), name
        for setting in settings:
            assert setting.text.endswith("."), setting.name


@pytest.mark.parametrize(("section", "key"), NAMES)
def test_the_manual_has_each_setting(section: str, key: str) -> None:
    text = (ROOT / "man" / "asrpt.toml.5").read_text()
    assert f".It Cm {key}\n" in text[text.index(f".Ss [{section}] section") :]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (".Sh evil", r"\&.Sh evil"),
        ("'quoted'", r"\(aqquoted\(aq"),
        (r"back\slash", r"back\eslash"),
        ("One. Two-fold", "One.\nTwo\\-fold"),
        ("Many, e.g. two.", "Many, e.g. two."),
    ],
)
def test_text_is_escaped_for_roff(text: str, expected: str) -> None:
    assert reference.roff(text) == expected


def test_units_bounds_and_choices_are_documented() -> None:
    found = {(name, s.name): s.kind for name, _, settings in reference.sections() for s in settings}
    assert found["daemon", "lease_s"] == "whole number of seconds, at least 5, at most 86400"
    assert found["daemon", "mode"] == "one of shadow, order, enforce"
    assert found["policy", "delay"] == "one of block, aside"
    assert found["fabric", "inter_bytes_per_s"] == "number of bytes per second, above 0"
    assert found["fabric", "beyond_bytes_per_s"] == "list of numbers of bytes per second"
    assert found["paths", "profiles"] == "list of paths"


@pytest.mark.parametrize("name", ["inter_bytes_per_s", "intra_bytes_per_s", "across_bytes_per_s", "beyond_bytes_per_s"])
def test_bandwidths_are_finite(name: str) -> None:
    value = [1e9, math.inf] if name == "beyond_bytes_per_s" else math.inf
    with pytest.raises(ValidationError, match="finite"):
        Settings.model_validate({"fabric": {name: value}})


def test_the_unit_is_valid_for_systemd() -> None:
    """Only sections and keys: systemd is not installed on every test machine."""
    section = ""
    for line in (ROOT / "etc" / "systemd" / "asrptd.service").read_text().splitlines():
        if line.startswith("["):
            section = line
        elif line and not line.startswith("#"):
            assert section
            assert re.match(r"[A-Z][A-Za-z]+=(\S|$)", line), line


def test_the_unit_may_write_to_the_default_paths() -> None:
    unit = (ROOT / "etc" / "systemd" / "asrptd.service").read_text()
    paths = Settings().paths
    assert f"-{paths.hook} -{paths.spool}" in unit
    assert str(paths.state) == "/var/lib/asrpt"
    assert str(paths.run) == "/run/asrpt"
    tmpfiles = (ROOT / "etc" / "tmpfiles.d" / "asrpt.conf").read_text()
    owners = {paths.hook: "slurm", paths.spool: "slurm", paths.scripts: "root", paths.profiles[0]: "root"}
    for path, owner in owners.items():
        assert re.search(rf"^d +{path} +0755 {owner} +{owner} ", tmpfiles, flags=re.MULTILINE)


@pytest.mark.parametrize("unit", ["asrptd.service", "asrpt-release.service", "asrpt-retrain.service"])
def test_no_unit_may_write_files_that_root_runs(unit: str) -> None:
    text = (ROOT / "etc" / "systemd" / unit).read_text()
    assert "ProtectSystem=strict\n" in text
    writable = re.findall(r"^ReadWritePaths=(.*)$", text, flags=re.MULTILINE)
    assert str(Settings().paths.hook) in writable[0]
    assert not any(str(path).startswith("-/etc") for line in writable for path in line.split())


def test_the_generator_runs_as_a_program(tmp_path: Path) -> None:
    for name in ("etc", "man", "docs"):
        (tmp_path / name).mkdir()
    subprocess.run([sys.executable, "-m", "slurm_asrpt.config.reference", tmp_path], check=True, timeout=60)
    assert (tmp_path / "man" / "asrpt.toml.5").exists()
