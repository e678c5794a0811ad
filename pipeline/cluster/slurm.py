"""Slurm: one job script a stage, and a script that submits an iteration after another."""

from __future__ import annotations

import shlex
from collections.abc import Mapping

from pipeline.cluster.chain import Chain, beside
from schemas.cluster import Cluster

GRACE_S = 120
"""Seconds before the time limit at which a job is asked to end."""
AGAIN = (4, 75, 143)
"""Exit codes that another try may mend: a stage failed, the run folder is held, the job was asked to end."""
TELL = 'scancel --signal=TERM "$SLURM_JOB_ID"'
"""Tells the command on every node to end. srun itself, told so, would kill them."""
MEET = (
    'MASTER_ADDR=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1); export MASTER_ADDR',
    "export MASTER_PORT=$((20000 + SLURM_JOB_ID % 20000))",
)
"""Where nodes find the first one; a port of the job's own, since nodes are shared."""


def slurm_files(chain: Chain) -> dict[str, str]:
    """Contents by file name: STAGE.sbatch for each stage of the recipe, next.sbatch, submit.sh."""
    scripts = {
        f"{stage}.sbatch": _script(chain, stage, [*chain.stage(stage), "--iteration"]) for stage in chain.every_stage()
    }
    following = [*chain.arguments("next"), *chain.processes("next")]
    return scripts | {"next.sbatch": _script(chain, "next", following), "submit.sh": _submit(chain)}


def _script(chain: Chain, stage: str, command: list[str]) -> str:
    cluster, needs = chain.cluster, chain.cluster.resources(stage)
    several = needs["nodes"] > 1
    line = shlex.join([*_everywhere(needs), *command] if several else command) + (' "$1"' if stage != "next" else "")
    lines = [
        "#!/bin/bash",
        *(f"#SBATCH {option}" for option in _options(chain, stage, needs)),
        "set -euo pipefail",
        *_prepared(cluster),
        *(MEET if several else ()),
        beside(line, TELL) if several else beside(line),
        f"case $code in {'|'.join(map(str, AGAIN))})",
        f'  if [ "${{SLURM_RESTART_COUNT:-0}}" -lt {needs["retries"]} ]; then',
        '    scontrol requeue "$SLURM_JOB_ID" && sleep 60',
        "  fi ;;",
        "esac",
        *(["[ $code -eq 10 ] && exit 0  # nothing is left to do"] if stage == "next" else []),
        "exit $code",
    ]
    return "\n".join(lines) + "\n"


def _everywhere(needs: Mapping[str, int]) -> list[str]:
    """The same command on every node of a job: each finds its place in SLURM_NODEID. The first that fails ends all."""
    return ["srun", "--ntasks-per-node=1", f"--cpus-per-task={needs['cpus']}", "--kill-on-bad-exit=1"]


def _options(chain: Chain, stage: str, needs: Mapping[str, int]) -> list[str]:
    slurm = chain.cluster.slurm
    found = [
        f"--job-name={chain.recipe.name}-{stage}",
        f"--output={chain.cluster.logs}/slurm/%x-%j.out",
        "--open-mode=append",
        f"--cpus-per-task={needs['cpus']}",
        f"--mem={needs['memory_gib']}G",
        f"--time={needs['minutes'] // 60:02d}:{needs['minutes'] % 60:02d}:00",
        f"--signal=B:TERM@{GRACE_S}",
        "--requeue",
    ]
    found += [f"--nodes={needs['nodes']}", "--ntasks-per-node=1"] if needs["nodes"] > 1 else []
    found += [f"--gres=gpu:{needs['gpus']}"] if needs["gpus"] else []
    found += [f"--partition={slurm.partition}"] if slurm.partition else []
    found += [f"--account={slurm.account}"] if slurm.account else []
    return found + list(slurm.options)


def _prepared(cluster: Cluster) -> list[str]:
    return [
        f"cd {shlex.quote(cluster.project)}",
        *cluster.setup,
        *(f"export {name}={shlex.quote(value)}" for name, value in sorted(cluster.environment.items())),
        *(f'{name}="$(cat {shlex.quote(file)})"; export {name}' for name, file in sorted(cluster.secrets.items())),
    ]


def _submit(chain: Chain) -> str:
    iterations = chain.recipe.run.iterations
    lines = [
        "#!/bin/bash",
        "# submit.sh [FIRST [LAST]]: the jobs of these iterations, each after the one before; prints their numbers.",
        "set -euo pipefail",
        f"first=${{1:-0}}; last=${{2:-{max(iterations - 1, 0)}}}; after=",
        'here=$(cd "$(dirname "$0")" && pwd)',
        f"mkdir -p {shlex.quote(chain.cluster.logs)}/slurm",
        "job() {",
        "  after=$(sbatch --parsable --kill-on-invalid-dep=yes ${after:+--dependency=afterok:$after} \\",
        '    "$here/$1.sbatch" "$2")',
        '  echo "$after $1 $2"',
        "}",
        'for iteration in $(seq "$first" "$last"); do',
        f'  [ "$iteration" -lt {iterations} ] || {{ echo "the recipe has {iterations} iterations" >&2; exit 2; }}',
        '  case "$iteration" in',
    ]
    shapes: dict[tuple[str, ...], list[int]] = {}
    for iteration in range(iterations):
        shapes.setdefault(tuple(chain.stages(iteration)), []).append(iteration)
    *rare, usual = sorted(shapes, key=lambda stages: len(shapes[stages]))
    for stages, which in [*((each, "|".join(map(str, shapes[each]))) for each in rare), (usual, "*")]:
        jobs = "; ".join(f'job {stage} "$iteration"' for stage in stages)
        lines.append(f"    {which}) {jobs} ;;")
    lines += ["  esac", "done"]
    return "\n".join(lines) + "\n"
