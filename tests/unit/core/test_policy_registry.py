"""The registry of policies, and how it handles invalid plugins."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path

import pytest

from slurm_asrpt.config.settings import PolicySettings, parse_policy_settings, parse_settings
from slurm_asrpt.core.cluster import Fabric
from slurm_asrpt.core.policies import registry
from slurm_asrpt.core.policies.registry import make_policy, plugin_errors, policy_names
from slurm_asrpt.errors import InputError
from tests.benches.gated import FABRIC

MODULE = """
from slurm_asrpt.core.policies.options import PolicyOptions
from slurm_asrpt.core.policies.queue_policy import QueuePolicy

class Plain(QueuePolicy):
    pass

class Taking(PolicyOptions):
    share: float = 0.5

class Good(QueuePolicy):
    Options = Taking

class Needing(PolicyOptions):
    share: float

class Needy(QueuePolicy):
    Options = Needing

class Naming(PolicyOptions):
    name: str = "x"

class Named(QueuePolicy):
    Options = Naming

def maker(fabric):
    raise ValueError
"""


@pytest.fixture
def plugins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Entry points: a valid one, one with a built-in name, and five invalid ones."""
    (tmp_path / "some_policies.py").write_text(MODULE)
    (tmp_path / "leaving.py").write_text("raise SystemExit(3)")
    values = {
        "good": "some_policies:Good",
        "fifo": "some_policies:Plain",
        "absent": "no_such_module:Policy",
        "leaving": "leaving:Policy",
        "function": "some_policies:maker",
        "needy": "some_policies:Needy",
        "named": "some_policies:Named",
    }
    points = [metadata.EntryPoint(name, value, registry.GROUP) for name, value in values.items()]
    monkeypatch.setattr(metadata, "entry_points", lambda group: points)
    monkeypatch.syspath_prepend(tmp_path)
    registry.installed_plugins.cache_clear()
    yield
    registry.installed_plugins.cache_clear()
    sys.modules.pop("some_policies", None)


@pytest.mark.usefixtures("plugins")
def test_only_valid_plugins_are_registered_and_built_in_policies_take_precedence() -> None:
    assert set(policy_names()) == {*registry.BUILT_IN, "good"}
    assert make_policy("good", FABRIC, share=0.25).options.model_dump() == {"share": 0.25}
    assert type(make_policy("fifo", FABRIC)).__module__.startswith("slurm_asrpt.")
    assert {error.name for error in plugin_errors()} == {"fifo", "absent", "leaving", "function", "needy", "named"}


@pytest.mark.usefixtures("plugins")
@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("absent", "ModuleNotFoundError"),
        ("leaving", "SystemExit: 3"),
        ("function", "is no subclass of"),
        ("needy", "share"),
        ("named", "cannot be called name"),
    ],
)
def test_choosing_an_invalid_plugin_is_an_error_with_the_cause(name: str, why: str) -> None:
    with pytest.raises(ValueError, match=f"(?s)no policy is called '{name}'.*{why}.*known: .*good"):
        make_policy(name, Fabric(1.0, 1.0))


@pytest.mark.usefixtures("plugins")
def test_settings_of_a_plugin_are_valid_under_every_policy() -> None:
    for name in ("good", "fifo"):
        found = parse_settings({"policy": {"name": name, "share": 0.75, "tau": 2.0}}, "test").policy
        assert isinstance(found, PolicySettings)
        assert found.chosen(registry.policy_settings("good")) == {"share": 0.75}
        assert found.chosen(registry.policy_settings("asrpt"))["tau"] == 2.0
    assert parse_policy_settings({"name": "good", "share": "0.5"}).chosen({"share"}) == {"share": 0.5}
    with pytest.raises(InputError, match=r"unknown setting policy\.shore"):
        parse_settings({"policy": {"name": "good", "shore": 1}}, "test")


def test_a_machine_without_the_plugin_accepts_the_same_settings_file() -> None:
    section = {"name": "of-elsewhere", "share": 0.75, "tau": 2.0}
    assert parse_settings({"policy": section}, "test").policy.tau == 2.0
    with pytest.raises(InputError, match=r"unknown setting policy\.share"):
        parse_settings({"policy": {**section, "name": "asrpt"}}, "test")


@pytest.mark.parametrize("options", [{"tau": -1}, {"gate": 2.0}, {"delay": "never"}])
def test_unknown_policy_options_are_rejected(options: dict[str, object]) -> None:
    with pytest.raises(ValueError, match=next(iter(options))):
        make_policy("asrpt", FABRIC, **options)
