"""Who may ask: somebody on this machine who has the token, through an address that names this machine."""

from __future__ import annotations

import hmac
from collections.abc import Sequence

HOST = "127.0.0.1"


def host_allowed(hosts: Sequence[str] | None, port: int) -> bool:
    """Whether the Host headers of a request name this server, and nothing else does.

    A page of another site, whose name was made to lead here (DNS rebinding), names itself there.
    """
    names = {
        f"{name}{end}" for name in (HOST, "localhost") for end in ((f":{port}", "") if port == 80 else (f":{port}",))
    }
    return hosts is not None and len(hosts) == 1 and hosts[0].strip().lower() in names


def wanted_by_itself(site: str | None, mode: str | None) -> bool:
    """Whether the page of this server, or a person, asks: browsers say it in Sec-Fetch-Site and Sec-Fetch-Mode.

    Cookies do not tell ports apart: without this, a page of another local server could ask with the person's cookie.
    """
    return site not in {"cross-site", "same-site"} or mode == "navigate"


def token_fits(given: str | None, token: str) -> bool:
    """Whether a token is the right one; the time that it takes says nothing about it."""
    return given is not None and hmac.compare_digest(given.encode(errors="replace"), token.encode())


def cookie_name(port: int) -> str:
    """Cookies are shared by all ports of a host, so two servers need two names."""
    return f"mmgrpo_{port}"


def cookie_of(header: str | None, name: str) -> str | None:
    """The value of a cookie; None where it is not in the header."""
    for part in (header or "").split(";"):
        key, sign, value = part.strip().partition("=")
        if sign and key == name:
            return value
    return None
