"""Users of this machine: by name, by ID, and the one who runs the command."""

from __future__ import annotations

import os
import pwd

from slurm_asrpt.errors import InputError


def own_name() -> str:
    """The name of the user who runs the command."""
    return _name_of(os.getuid())


def find_user(user: str | None) -> tuple[int, str]:
    """User ID and name; None: who runs the command. Raises InputError for a user unknown to this machine."""
    try:
        if user is None or (user.isascii() and user.isdigit()):
            uid = os.getuid() if user is None else int(user)
            return uid, _name_of(uid)
        return pwd.getpwnam(user).pw_uid, user
    except (KeyError, ValueError):
        raise InputError(f"--user {user}: no such user on this machine; give a user name or ID") from None


def is_user(name: str) -> bool:
    """Whether this machine knows the user, or it is the one who runs the command."""
    try:
        pwd.getpwnam(name)
    except (KeyError, ValueError):  # ValueError: it has a null byte
        return name == own_name()
    return True


def _name_of(uid: int) -> str:
    """The user ID where it has no name, as in some containers."""
    try:
        return pwd.getpwuid(uid).pw_name
    except (KeyError, OverflowError):
        return str(uid)
