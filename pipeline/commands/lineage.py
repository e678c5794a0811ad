"""`mmgrpo lineage RUN`."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

TEXT = "which rollouts trained an adapter; what came of a rollout"


def arguments(parser: argparse.ArgumentParser) -> None:
    """What the command line takes."""
    parser.add_argument("run", type=Path, help="a run folder")
    parser.add_argument("--policy", metavar="DIGEST", help="the rollouts behind this policy (the first digits will do)")
    parser.add_argument("--rollout", metavar="ID", help="what came of this rollout (the first digits will do)")
    parser.add_argument("--json", action="store_true", help="machine-readable output")


def do(options: argparse.Namespace) -> int:
    """`mmgrpo lineage RUN`."""
    from pipeline import lineage
    from pipeline.texttable import fields, table

    if options.policy is not None:
        rows = lineage.of_policy(options.run, options.policy)
        print(json.dumps(rows, indent=2) if options.json else table(rows))
    elif options.rollout is not None:
        fate = lineage.of_rollout(options.run, options.rollout)
        parts = {"members": fate["members"], "excluded": fate["excluded"]}
        text = [fields(fate["rollout"]), *(f"\n{name}:\n{table(rows)}" for name, rows in parts.items())]
        text.append(f"\ntrained policies: {', '.join(policy[:12] for policy in fate['policies']) or 'none'}")
        print(json.dumps(fate, indent=2) if options.json else "\n".join(text))
    else:
        rows = lineage.chain(options.run)
        print(json.dumps(rows, indent=2) if options.json else table(rows))
    return 0
