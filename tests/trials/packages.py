"""Install the packages of ``make deb`` or ``make rpm`` into a minimal Debian 12, and remove them.

    python -m tests.trials.packages PACKAGE...

The Debian is created in build/packages/root (debootstrap, as root). The checks run in order; the first that fails
ends the run with exit code 1. RPM packages are installed with Debian's rpm: this tests their contents and
scripts, but not their dependencies on Red Hat.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from slurm_asrpt.errors import AsrptError, one_line
from slurm_asrpt.lab import other_release
from slurm_asrpt.lab.other_release import TREE, command_in, environment

ROOT = TREE / "build" / "packages" / "root"
COMMANDS = (
    "asrptd",
    "asrpt-status",
    "asrpt-report",
    "asrpt-admin",
    "asrpt-lab",
    "asrpt-sim",
    "asrpt-profile",
    "asrpt-pool",
)
UNITS = ROOT / "lib/systemd/system"
STARTS_UNIT = re.compile(r"^(?:OnFailure|OnSuccess|Unit)=(.+)$", re.MULTILINE)
RUNS = re.compile(r"^Exec\w+=(/\S+)", re.MULTILINE)
SCRIPTS = re.compile(r"^\w+=(/etc/slurm/asrpt/\S+)$", re.MULTILINE)
"""In slurm.conf.snippet."""
SETTINGS, TABLE = Path("etc/slurm/asrpt.toml"), Path("var/lib/asrpt-hook/table.txt")
SNIPPET, WAKEUP = Path("usr/share/slurm-asrpt/slurm.conf.snippet"), Path("var/lib/asrpt-hook/wakeup")
APT = ("env", "DEBIAN_FRONTEND=noninteractive", "apt-get", "-qq", "-y", "--no-install-recommends")
OWN_FILES = ("etc", "usr", "lib", "var", "run")
"""Directories where no file of ours may remain; build/packages/root also has mount points of this tree."""


class FaultError(AsrptError):
    """A package failed a check."""


def inside(*command: str, check: bool = True) -> str:
    """The output of a command in the Debian, both streams. Raises FaultError."""
    words = command_in(ROOT, command)
    env = environment({"PATH": "/usr/bin:/bin"})
    done = subprocess.run(words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False, env=env)
    if check and done.returncode:
        raise FaultError(f"{' '.join(command)}: exit code {done.returncode}: {done.stdout[-500:]}")
    return done.stdout


def must(holds: bool, what: str) -> None:
    if not holds:
        raise FaultError(f"not so: {what}")
    print(f"  {what}", flush=True)


def install(packages: Sequence[Path]) -> None:
    guard = ROOT / "usr/sbin/policy-rc.d"  # no services start during installation
    guard.write_text("#!/bin/sh\nexit 101\n", encoding="ascii")
    guard.chmod(0o755)
    for package in packages:
        shutil.copy(package, ROOT / "tmp")
    inside(*APT, "update")
    files = [f"/tmp/{package.name}" for package in packages]
    if _are_rpms(packages):
        inside(*APT, "install", "rpm", "python3", "systemd")
        inside("rpm", "--upgrade", "--replacepkgs", "--nodeps", *files)
    else:
        inside(*APT, "install", *files)


def _are_rpms(packages: Sequence[Path]) -> bool:
    return packages[0].suffix == ".rpm"


def check_commands() -> None:
    for name in COMMANDS:
        must(f"sage: {name}" in inside(name, "--help"), f"{name} --help")
    figures = inside("asrpt-sim", "run", "pai-like:300", "--policy", "asrpt-gated", "--json")
    must('"policy": "asrpt-gated"' in figures, "asrpt-sim simulates")
    must("asrpt" in inside("asrptd", "--config", "/nowhere.toml", check=False), "asrptd says what is wrong in a line")
    inside("asrpt-admin", "retrain", "--help")


def check_units() -> None:
    for unit in sorted(path.name for path in (TREE / "etc/systemd").iterdir()):
        must((UNITS / unit).exists(), f"{unit} is there")
        must(not list((ROOT / "etc/systemd/system").rglob(unit)), f"{unit} is not enabled")
        text = (UNITS / unit).read_text(encoding="utf-8")
        for program in RUNS.findall(text):
            inside("test", "-x", program)
        for other in STARTS_UNIT.findall(text):
            must((UNITS / other).exists(), f"{unit} can start {other}")
    unit = (UNITS / "asrptd.service").read_text(encoding="utf-8")
    must("\nOnFailure=asrpt-release.service\n" in unit, "asrptd.service hands the jobs back after failures")


def check_scripts() -> None:
    scripts = {path.name for path in (TREE / "plugin_hooks").glob("asrpt-*")}
    must(scripts <= {path.name for path in (ROOT / "etc/slurm/asrpt").iterdir()}, "prologs and epilogs are there")
    named = SCRIPTS.findall((ROOT / SNIPPET).read_text(encoding="utf-8"))
    must({Path(name).name for name in named} == scripts, "slurm.conf.snippet names all of them")
    for name in named:
        must(os.access(ROOT / name[1:], os.X_OK), f"{name} can be executed")
    inside("runuser", "-u", "slurm", "--", "/etc/slurm/asrpt/asrpt-epilog-slurmctld")
    must((ROOT / WAKEUP).exists(), "SlurmUser's EpilogSlurmctld wakes asrptd")


def check_guard() -> None:
    """The guard of a killed process runs its command; asrptd's is asrpt-admin release, beside asrptd."""
    guard = "from slurm_asrpt.daemon.guard import Guard; Guard(['touch', '/tmp/guarded'], 0)"
    kill = "import os; os.kill(os.getpid(), 9)"
    start = f'"$1" -c "{guard}; {kill}"'
    wait = "for _ in $(seq 100); do [ -e /tmp/guarded ] && break; sleep 0.1; done"
    inside("sh", "-c", f"{start}; {wait}; rm /tmp/guarded", "sh", "/usr/lib/slurm-asrpt/bin/python")
    must("sage: asrpt-admin release" in inside("/usr/bin/asrpt-admin", "release", "--help"), "asrptd's guard can work")


def check_files() -> None:
    owner = inside("stat", "--format=%U", "/var/lib/asrpt-hook", "/var/spool/asrpt/progress").split()
    must(owner == ["slurm", "slurm"], "folders are SlurmUser's")
    owner = inside("stat", "--format=%U", "/etc/slurm/asrpt", "/etc/slurm/asrpt/asrpt-prolog").split()
    must(owner == ["root", "root"], "what root runs is root's")
    manuals = {path.name.removesuffix(".gz") for path in (ROOT / "usr/share/man").rglob("asrpt*")}
    must(manuals == {path.name for path in (TREE / "man").glob("*.[158]")}, "manuals")
    must(not (ROOT / "etc/slurm/job_submit.lua").exists(), "a site's job_submit.lua is left alone")


def check_conffiles(packages: Sequence[Path]) -> None:
    """Changes by the admin survive an upgrade and a removal."""
    changed = (ROOT / SETTINGS).read_text(encoding="utf-8") + "# the admin's\n"
    (ROOT / SETTINGS).write_text(changed, encoding="utf-8")
    (ROOT / TABLE).write_text("learned\n", encoding="ascii")
    install(packages)
    must((ROOT / SETTINGS).read_text(encoding="utf-8") == changed, "settings outlive an upgrade")
    kept = ROOT / SETTINGS
    if _are_rpms(packages):
        inside("rpm", "--erase", "slurm-asrpt", "slurm-asrpt-controller")
        kept = kept.with_name(f"{kept.name}.rpmsave")
    else:
        inside(*APT, "remove", "slurm-asrpt", "slurm-asrpt-controller")
    must(kept.read_text(encoding="utf-8") == changed, f"settings outlive a removal, as {kept.name}")
    must((ROOT / TABLE).exists(), "what was learned outlives a removal")
    must(not (ROOT / "usr/bin/asrptd").exists(), "commands do not")


def check_purge() -> None:
    inside(*APT, "purge", "slurm-asrpt", "slurm-asrpt-controller")
    left = [path for top in OWN_FILES for path in (ROOT / top).rglob("*asrpt*") if _ours(path)]
    must(not left, f"nothing is left after a purge {[str(path.relative_to(ROOT)) for path in left] or ''}")


def _ours(path: Path) -> bool:
    return not path.is_relative_to(ROOT / "var/log") and not path.is_relative_to(ROOT / "var/lib/dpkg")


def test(packages: Sequence[Path]) -> None:
    shutil.rmtree(ROOT, ignore_errors=True)
    other_release.bootstrap("bookworm", ROOT)
    steps: list[tuple[str, Callable[[], None]]] = [
        ("installed", lambda: install(packages)),
        ("commands", check_commands),
        ("units", check_units),
        ("scripts", check_scripts),
        ("guard", check_guard),
        ("files", check_files),
        ("upgrade and removal", lambda: check_conffiles(packages)),
    ]
    if not _are_rpms(packages):  # RPM has no purge
        steps.append(("purge", check_purge))
    for what, step in steps:
        print(what, flush=True)
        step()


def main(arguments: Sequence[str]) -> int:
    packages = [Path(name) for name in arguments]
    if not packages or not all(package.is_file() for package in packages):
        print("tests.trials.packages: name the packages that make deb or make rpm has made", file=sys.stderr)
        return 2
    try:
        test(packages)
    except AsrptError as error:
        print(f"tests.trials.packages: {one_line(error)}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
