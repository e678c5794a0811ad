"""`mmgrpo lineage RUN`."""

from __future__ import annotations

import argparse
import json

from pipeline.commands.arguments import folder
from pipeline.terminal import say

TEXT = "what an adapter, a rollout, an example or a trace was made from, and what came of it"


def arguments(parser: argparse.ArgumentParser) -> None:
    """What the command line takes."""
    parser.add_argument(
        "run", type=folder, help="a run folder; with no option below but --json, its iterations are listed"
    )
    about = parser.add_mutually_exclusive_group()
    about.add_argument("--adapter", metavar="A", help="of an adapter: its folder or a copy of it, or its digest")
    about.add_argument("--rollout", metavar="ID", help="of a rollout (the first digits will do)")
    about.add_argument("--example", metavar="ID", help="of an example")
    about.add_argument("--trace", metavar="ID", help="of a logged trace, through the snapshot that it is in")
    about.add_argument("--policy", metavar="DIGEST", help="the rollouts behind this policy, a row each")
    parser.add_argument("--json", action="store_true", help="machine-readable output, whole")


def do(options: argparse.Namespace) -> int:
    """`mmgrpo lineage RUN`."""
    from pipeline import lineage
    from pipeline.graph import open_graph
    from pipeline.texttable import table
    from pipeline.tracing.trees import Tracer, as_text

    if options.policy is not None:
        rows = lineage.of_policy(options.run, options.policy)
        say(json.dumps(rows, indent=2) if options.json else table(rows))
        return 0
    if all(getattr(options, name) is None for name in ("adapter", "rollout", "example", "trace")):
        rows = lineage.chain(options.run)
        say(json.dumps(rows, indent=2) if options.json else table(rows))
        return 0
    tracer = Tracer(open_graph(options.run), options.run)
    if options.adapter is not None:
        say(as_text(tracer.adapter(options.adapter), as_json=options.json))
    elif options.example is not None:
        say(as_text(tracer.example(options.example), as_json=options.json))
    elif options.trace is not None:
        say(as_text(tracer.trace(options.trace), as_json=options.json))
    else:
        traced = tracer.rollout(options.rollout)
        fate = lineage.of_rollout(options.run, options.rollout)
        say(json.dumps(fate | traced.as_json(), indent=2) if options.json else as_text(traced, as_json=False))
    return 0
