"""A server of OpenSSH on a loopback address, with separate keys, for tests."""

from __future__ import annotations

import getpass
import os
import shutil
import socket
import subprocess
from collections.abc import Mapping
from pathlib import Path

from ciel.testing.homes import wait_for

_PLACES = f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin"

_EMPTY = Path("/run/sshd")
"""Debian's sshd needs this empty directory when it runs as root; systemd usually creates it."""


def why_no_sshd() -> str:
    """Return why no server of ssh can be started here; "" if one can."""
    missing = [
        name for name in ("ssh", "ssh-keygen", "sshd") if shutil.which(name, path=_PLACES) is None
    ]
    return f"needs {', '.join(missing)} (Debian: openssh-server)" if missing else ""


def _key(path: Path) -> Path:
    subprocess.run(
        ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(path)], check=True, timeout=30
    )
    return path


class Sshd:
    """A server at `host` (`USER@127.0.0.1:PORT`); its logins have the variables `environ`.

    `options`: the options of `ssh` that reach it, with a key that it accepts.
    """

    def __init__(self, directory: Path, environ: Mapping[str, str]) -> None:
        self.directory = directory
        directory.mkdir(mode=0o700)
        with socket.socket() as sock:
            sock.bind(("127.0.0.1", 0))
            self.port = int(sock.getsockname()[1])
        host_key, user_key = _key(directory / "host_key"), _key(directory / "user_key")
        public = user_key.with_suffix(".pub").read_text()
        (directory / "authorized_keys").write_text(public)
        variables = " ".join(f'"{name}={value}"' for name, value in environ.items())
        config = directory / "sshd_config"
        config.write_text(
            f"""ListenAddress 127.0.0.1:{self.port}
HostKey {host_key}
AuthorizedKeysFile {directory}/authorized_keys
PidFile none
StrictModes no
UsePAM no
PasswordAuthentication no
PermitRootLogin yes
SetEnv {variables}
"""
        )
        self.host = f"{getpass.getuser()}@127.0.0.1:{self.port}"
        self.options = self._client_options(user_key, host_key)
        self._has_created = os.geteuid() == 0 and not _EMPTY.exists()
        if self._has_created:
            _EMPTY.mkdir(mode=0o755)
        log = (directory / "sshd.out").open("wb")
        self._process = subprocess.Popen(
            [shutil.which("sshd", path=_PLACES) or "sshd", "-D", "-e", "-f", str(config)],
            stdin=subprocess.DEVNULL, stdout=log, stderr=log, env={"PATH": _PLACES},
        )  # fmt: skip
        log.close()
        wait_for(self._listens, "sshd")

    def _client_options(self, user_key: Path, host_key: Path) -> list[str]:
        known = self.directory / "known_hosts"
        known.write_text(f"[127.0.0.1]:{self.port} {host_key.with_suffix('.pub').read_text()}")
        config = self.directory / "ssh_config"
        config.write_text(
            f"UserKnownHostsFile {known}\nGlobalKnownHostsFile /dev/null\n"
            f"StrictHostKeyChecking yes\nIdentityFile {user_key}\nIdentitiesOnly yes\n"
            "IdentityAgent none\n"
        )
        return ["-F", str(config)]

    def _listens(self) -> bool:
        with socket.socket() as sock:
            return sock.connect_ex(("127.0.0.1", self.port)) == 0

    def close(self) -> None:
        """End the server."""
        self._process.terminate()
        self._process.wait(20)
        if self._has_created:
            _EMPTY.rmdir()
