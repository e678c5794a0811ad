"""How templates are read: everything that is put into a page is escaped, and a name that is not there is an error."""

from __future__ import annotations

from jinja2 import Environment, PackageLoader, StrictUndefined


def open_templates() -> Environment:
    """An environment over `pipeline/reporting/templates`, without filters of ours."""
    return Environment(
        loader=PackageLoader("pipeline.reporting"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
