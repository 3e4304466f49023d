"""A separate systemd, the first process in new namespaces, on a copy-on-write view of this machine's files.

It starts only the units that a test starts, none of those enabled on this machine.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

PROGRAM = Path("/usr/lib/systemd/systemd")
CGROUPS = Path("/sys/fs/cgroup")
NAMESPACES = ("--mount", "--pid", "--uts", "--ipc", "--cgroup")
HIDDEN = ("/tmp", "/var/tmp", "/home", "/root", "/run/user")
DEVICES = {"null": (1, 3), "zero": (1, 5), "full": (1, 7), "random": (1, 8), "urandom": (1, 9), "tty": (5, 0)}


def why_not() -> str:
    """Why systemd cannot run here, or "" if it can."""
    if os.geteuid() != 0:
        return "needs root"
    if not PROGRAM.exists() or shutil.which("systemctl") is None:
        return "systemd is not on this machine"
    if any(Path(sys.prefix).is_relative_to(place) for place in HIDDEN):
        return f"the units see nothing below {', '.join(HIDDEN)}, where this checkout is"
    if not _hierarchies():
        return "no cgroups that it could have"
    done = subprocess.run(["unshare", *NAMESPACES, "--fork", "true"], capture_output=True, check=False)
    return "" if done.returncode == 0 else "no new namespaces here"


def _hierarchies() -> list[Path]:
    """The cgroup hierarchies of systemd."""
    places = [CGROUPS / "systemd", CGROUPS / "unified", CGROUPS]
    return [place for place in places if (place / "cgroup.procs").exists()]


class Trial:
    """A running systemd. folder: its root directory."""

    def __init__(self, first: int) -> None:
        self.first, self.root = first, Path(f"/proc/{first}/root")

    def run(self, *command: str) -> subprocess.CompletedProcess[str]:
        """Run a command in it; stdout has both streams."""
        enter = ["nsenter", "-t", str(self.first), "-m", "-p", "-u", "-i", "-C", f"--root={self.root}", "--wd=/"]
        output = subprocess.PIPE
        return subprocess.run([*enter, *command], stdout=output, stderr=subprocess.STDOUT, text=True, timeout=90)

    def show(self, unit: str, *properties: str) -> dict[str, str]:
        said = self.run("systemctl", "show", unit, *(f"--property={name}" for name in properties)).stdout
        return dict(line.partition("=")[::2] for line in said.splitlines())


@contextlib.contextmanager
def trial(shared: Sequence[Path]) -> Iterator[Trial]:
    """shared: directories that it sees directly, with sockets and changes; all others are copies."""
    base = Path(tempfile.mkdtemp(prefix="asrpt-systemd-", dir="/run"))
    groups = [place / base.name for place in _hierarchies()]
    for group in groups:
        group.mkdir()
    command = ["unshare", *NAMESPACES, "--fork", "--kill-child", sys.executable, __file__, str(base), *map(str, shared)]
    with (base / "log").open("wb") as log:
        outer = subprocess.Popen(command, stdout=log, stderr=log, preexec_fn=lambda: _join(groups))
    try:
        found = Trial(_first_of(outer))
        _wait_for_boot(found, base / "log")
        yield found
    finally:
        outer.send_signal(signal.SIGKILL)
        outer.wait()
        for group in groups:
            _remove(group)
        shutil.rmtree(base)


def _join(groups: Sequence[Path]) -> None:
    for group in groups:
        (group / "cgroup.procs").write_text(str(os.getpid()), encoding="ascii")


def _first_of(outer: subprocess.Popen[bytes]) -> int:
    """The process that unshare forked."""
    children = Path(f"/proc/{outer.pid}/task/{outer.pid}/children")
    deadline = time.monotonic() + 10.0
    while outer.poll() is None and time.monotonic() < deadline:
        found = children.read_text(encoding="ascii").split()
        if found:
            return int(found[0])
        time.sleep(0.01)
    raise RuntimeError("unshare has started nothing")


def _wait_for_boot(found: Trial, log: Path) -> None:
    deadline = time.monotonic() + 60.0
    while found.run("systemctl", "is-system-running").stdout.strip() not in ("running", "degraded"):
        if time.monotonic() > deadline:
            raise RuntimeError(f"systemd has not come up: {log.read_text(errors='replace')[-2000:]}")
        time.sleep(0.1)


def _remove(group: Path) -> None:
    """Remove a cgroup and all below it, once their processes are gone."""
    deadline = time.monotonic() + 10.0
    for folder, _, _ in os.walk(group, topdown=False):
        while time.monotonic() < deadline:
            with contextlib.suppress(OSError):
                os.rmdir(folder)
                break
            time.sleep(0.05)


# inside the new namespaces


def boot(base: Path, shared: Sequence[Path]) -> None:
    """Become systemd, on a copy of this machine's files."""
    _mount("--make-rprivate", "/")
    _mount("-t", "tmpfs", "tmpfs", base)
    upper, work, root = (base / name for name in ("upper", "work", "root"))
    for folder in (upper, work, root):
        folder.mkdir()
    _mount("-t", "overlay", "overlay", "-o", f"lowerdir=/,upperdir={upper},workdir={work}", root)
    for top in ("usr/lib", "etc"):
        for wants in (root / top / "systemd" / "system").glob("*.wants"):
            shutil.rmtree(wants)
    _mount_kernels(root)
    for folder in shared:
        (root / folder.relative_to("/")).mkdir(parents=True, exist_ok=True)
        _mount("--bind", folder, root / folder.relative_to("/"))
    old = root / "mnt"  # not chroot: inside one, no user namespace is possible, and PrivateUsers= needs one
    subprocess.run(["pivot_root", root, old], check=True)
    os.chdir("/")
    _mount("--make-rprivate", "/mnt")
    subprocess.run(["umount", "--lazy", "/mnt"], check=True)
    words = ["systemd", "--system", "--unit=basic.target", "--log-target=console"]
    os.execve(PROGRAM, words, {"container": "trial", "PATH": "/usr/sbin:/usr/bin:/sbin:/bin"})


def _mount_kernels(root: Path) -> None:
    """Mount the kernel's file systems: settings are read-only, and only harmless devices exist."""
    _mount("-t", "proc", "proc", root / "proc")
    _mount("--bind", root / "proc" / "sys", root / "proc" / "sys")
    _mount("-o", "remount,bind,ro", root / "proc" / "sys")
    _mount("--rbind", "/sys", root / "sys")
    for name in ("dev", "run", "tmp"):
        _mount("-t", "tmpfs", "-o", "mode=755", "tmpfs", root / name)
    for name, (major, minor) in DEVICES.items():
        os.mknod(root / "dev" / name, 0o20666, os.makedev(major, minor))
        (root / "dev" / name).chmod(0o666)
    for name in ("shm", "pts", "mqueue", "hugepages"):
        (root / "dev" / name).mkdir()
    _mount("-t", "devpts", "-o", "newinstance,ptmxmode=0666", "devpts", root / "dev" / "pts")
    (root / "dev" / "ptmx").symlink_to("pts/ptmx")
    (root / "dev" / "console").touch()


def _mount(*words: str | Path) -> None:
    subprocess.run(["mount", *words], check=True)


if __name__ == "__main__":
    boot(Path(sys.argv[1]), [Path(word) for word in sys.argv[2:]])
