"""`mmgrpo render slurm|kubernetes RECIPE --cluster FILE FOLDER`."""

from __future__ import annotations

import argparse
from pathlib import Path

from pipeline.commands.arguments import count
from pipeline.terminal import say

TEXT = "write a recipe's stages as jobs of Slurm or Kubernetes"


def arguments(parser: argparse.ArgumentParser) -> None:
    """What the command line takes."""
    parser.add_argument("what", choices=["slurm", "kubernetes"], help="for which scheduler")
    parser.add_argument("recipe", type=Path, help="a recipe file (TOML), called as in the cluster's project folder")
    parser.add_argument("folder", type=Path, help="the folder to write; it must be empty or not exist")
    parser.add_argument(
        "--cluster",
        type=Path,
        required=True,
        metavar="FILE",
        help="the cluster file (TOML; schemas/cluster.py lists it)",
    )
    parser.add_argument(
        "--set", action="append", default=[], metavar="FIELD=VALUE", help="set a recipe field; may be repeated"
    )
    parser.add_argument("--iteration", type=count, default=0, metavar="I", help="of the Kubernetes Jobs (default 0)")


def do(options: argparse.Namespace) -> int:
    """`mmgrpo render slurm|kubernetes RECIPE --cluster FILE FOLDER`."""
    from pipeline.cluster.chain import Chain
    from pipeline.cluster.files import load_cluster, write_files
    from pipeline.cluster.kubernetes import kubernetes_files
    from pipeline.cluster.slurm import slurm_files
    from pipeline.recipes import load_recipe
    from schemas.errors import RecipeError

    loaded, cluster = load_recipe(options.recipe, options.set), load_cluster(options.cluster)
    if options.iteration >= loaded.recipe.run.iterations:
        raise RecipeError(f"the recipe has {loaded.recipe.run.iterations} iterations, there is no {options.iteration}")
    chain = Chain(loaded.recipe, str(options.recipe), tuple(options.set), cluster)
    files = slurm_files(chain) if options.what == "slurm" else kubernetes_files(chain, options.iteration)
    write_files(options.folder, files)
    say(f"{options.folder}: {', '.join(files)}")
    start = "submit.sh" if options.what == "slurm" else "run.sh"
    say(f"Start all stages with {options.folder / start}")
    return 0
