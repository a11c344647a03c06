"""Parses and formats addresses: hosts, ports and the URLs of masters."""

import re
from typing import Final

from ciel.access.paths import normalise_host

DEFAULT_PORT: Final = 8000
TAKEN: Final = "another program already listens there"
"""The reason in errors about an address that is in use. If ciel chose the port, it tries another.
"""
_URL = re.compile(r"(?:(https?)://)?(\[[^\[\]]+\]|[^\[\]:/]+)(?::(\d{1,5}))?/?", re.ASCII)
_NAME = re.compile(r"(?!-)[a-z0-9_-]{1,63}(?:\.(?!-)[a-z0-9_-]{1,63})*\.?", re.ASCII)
_NAME_MAX_LENGTH = 253


def parse_url(text: str) -> tuple[str, str, int]:
    """Split `[http[s]://]HOST[:PORT]` into URL, host and port; ValueError for anything else."""
    match = _URL.fullmatch(text.lower())
    if match is None:
        raise ValueError(text)
    scheme, host, port_text = match[1] or "http", match[2].strip("[]"), match[3]
    port = DEFAULT_PORT if port_text is None else int(port_text)
    if not (0 < port < 65536 and (_is_ip_address(host) if match[2] != host else _is_name(host))):
        raise ValueError(text)
    return f"{scheme}://{netloc(host, port)}", host, port


def _is_name(text: str) -> bool:
    """Whether a text is a valid host name or IPv4 address. Names are not resolved."""
    return len(text) <= _NAME_MAX_LENGTH and bool(_NAME.fullmatch(text))


def _is_ip_address(text: str) -> bool:
    import ipaddress  # most addresses are names, or IPv4

    try:
        return bool(ipaddress.ip_address(text))
    except ValueError:
        return False


def is_loopback(host: str) -> bool:
    """Whether `host` is a loopback address. Names other than `localhost` are not resolved."""
    name = normalise_host(host)
    if name == "localhost":
        return True
    import ipaddress

    try:
        return ipaddress.ip_address(name).is_loopback
    except ValueError:
        return False


def netloc(host: str, port: int) -> str:
    """Return `HOST:PORT`, with brackets around an IPv6 address."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
