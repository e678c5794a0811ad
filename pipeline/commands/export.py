"""`mmgrpo export groups RUN TARGET` and `mmgrpo export adapter RUN FOLDER`."""

from __future__ import annotations

import argparse
from pathlib import Path

from pipeline.commands.arguments import count, folder
from pipeline.terminal import say

TEXT = "write an adapter with its card, or the groups of an iteration joined with their tokens"


def arguments(parser: argparse.ArgumentParser) -> None:
    """What the command line takes."""
    parser.add_argument("what", choices=["adapter", "groups"])
    parser.add_argument("run", type=folder, help="a run folder, or its address")
    parser.add_argument("target", type=Path, help="the folder (adapter) or the Parquet file (groups) to write")
    parser.add_argument("--iteration", type=count, metavar="I", help="of groups: which iteration (default 0)")
    parser.add_argument(
        "--policy", metavar="DIGEST", help="of adapters: which, or `newest` (default: what is released)"
    )
    parser.add_argument("--merged", action="store_true", help="of adapters: whole weights, the base with it merged")
    parser.add_argument("--base", metavar="FOLDER", help="of adapters: where the base is, if not where the recipe says")


def do(options: argparse.Namespace) -> int:
    """`mmgrpo export WHAT RUN TARGET`."""
    _refuse_others(options)
    if options.what == "groups":
        from pipeline.export import export_groups

        rows = export_groups(options.run, options.iteration or 0, options.target)
        say(f"{options.target}: {rows} members")
        return 0
    from pipeline.exporting.folder import export_adapter

    facts = export_adapter(options.run, options.target, policy=options.policy, merged=options.merged, base=options.base)
    what = f"merged weights, {facts.merged}" if facts.merged else ", ".join(facts.adapters)
    say(f"{options.target}: policy {facts.policy[:12]} after {facts.iterations} iterations ({what})")
    return 0


def _refuse_others(options: argparse.Namespace) -> None:
    """Options that belong to the other kind of export are no accident to pass over."""
    from schemas.errors import RecipeError

    given = {name: getattr(options, name) for name in ("iteration", "policy", "merged", "base")}
    others = ("iteration",) if options.what == "adapter" else ("policy", "merged", "base")
    for name in others:
        if given[name] not in (None, False):
            raise RecipeError(f"--{name} does not go with `mmgrpo export {options.what}`; `mmgrpo export --help`")
