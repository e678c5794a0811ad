"""The page's own scripts: written into it, and named by their digests in its content security policy.

A browser then runs these bytes and no others, whatever markup a model or a user may have written.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.resources import files

from markupsafe import Markup

POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src data:; base-uri 'none'; form-action 'none'"


@dataclass(frozen=True)
class Scripts:
    """What goes into a page."""

    tags: Markup
    """One `<script>` for each."""
    policy: str
    """The page's content security policy."""


def inline(sources: Sequence[str]) -> Scripts:
    """Tags and policy for some scripts; none of them may hold `</script` or `<!--`, which would end or escape it."""
    for source in sources:
        assert "</script" not in source.lower(), "a script must not hold its own end"
        assert "<!--" not in source, "a script must not begin a comment of HTML"
    named = " ".join(f"'sha256-{_digest(source)}'" for source in sources)
    tags = Markup("\n").join(Markup("<script>{}</script>").format(Markup(source)) for source in sources)  # noqa: S704
    return Scripts(tags, f"{POLICY}; script-src {named}" if sources else POLICY)


def own_script() -> str:
    """What the report itself needs."""
    return (files("pipeline.reporting") / "templates" / "report.js").read_text(encoding="utf-8")


def _digest(source: str) -> str:
    return base64.b64encode(hashlib.sha256(source.encode()).digest()).decode()
