"""Kubernetes: a Job for each stage of an iteration with a script that runs them in order, and a CronJob."""

from __future__ import annotations

import json
import re
import shlex
from typing import Any

from pipeline.cluster.chain import Chain, beside
from schemas.errors import RecipeError

GRACE_S = 120
SERVICE = "train-service.json"
HOPELESS = [2, 3]
"""Exit codes that another try does not mend: recipe or usage, data."""


def kubernetes_files(chain: Chain, iteration: int) -> dict[str, str]:
    """Contents by file name: NN-STAGE.json for each stage of the iteration, run.sh, cronjob.json.

    Where the train stage has several nodes its Job has a pod for each, and a Service by which they find the first.

    Raises:
        RecipeError: when no image is named, or a secret is not SECRET/KEY.
    """
    if chain.cluster.kubernetes.image is None:
        raise RecipeError("kubernetes.image is not set: name the container image that has mmgrpo and the program")
    jobs = {
        f"{place:02d}-{stage}.json": _job(chain, stage, iteration)
        for place, stage in enumerate(chain.stages(iteration))
    }
    names = [(file, job["metadata"]["name"]) for file, job in jobs.items()]
    if chain.cluster.resources("train")["nodes"] > 1:
        jobs |= {SERVICE: _service(chain, next(name for file, name in names if file.endswith("-train.json")))}
    files = {name: _text(job) for name, job in jobs.items()}
    return files | {"run.sh": _run(chain, names), "cronjob.json": _text(_cron(chain))}


def _job(chain: Chain, stage: str, iteration: int) -> dict[str, Any]:
    command = [*chain.stage(stage), "--iteration", str(iteration)]
    name = _name(chain.recipe.name, str(iteration), stage)
    spec = _spec(chain, stage, command)
    if (nodes := chain.cluster.resources(stage)["nodes"]) > 1:
        # Pods are counted, and named, by their index: the first writes, and the others find it by name.
        spec |= {"completionMode": "Indexed", "completions": nodes, "parallelism": nodes}
        spec["template"]["spec"]["subdomain"] = name
        meet = {"name": "MASTER_ADDR", "value": f"{name}-0.{name}"}
        spec["template"]["spec"]["containers"][0]["env"].append(meet)
    return {"apiVersion": "batch/v1", "kind": "Job", "metadata": _about(chain, name), "spec": spec}


def _service(chain: Chain, job: str) -> dict[str, Any]:
    """A name for each pod of a Job, from before it is ready."""
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": _about(chain, job),
        "spec": {
            "clusterIP": "None",
            "publishNotReadyAddresses": True,
            "selector": {"batch.kubernetes.io/job-name": job},
        },
    }


def _cron(chain: Chain) -> dict[str, Any]:
    # Nothing left to do is no failure: a schedule outlives a run.
    line = shlex.join([*chain.arguments("next"), *chain.processes("next")])
    script = f"{beside(line)}\n[ $code -eq 10 ] && exit 0\nexit $code"
    command = ["bash", "-c", script]
    return {
        "apiVersion": "batch/v1",
        "kind": "CronJob",
        "metadata": _about(chain, _name(chain.recipe.name, "next")),
        "spec": {
            "schedule": chain.cluster.kubernetes.schedule,
            "concurrencyPolicy": "Forbid",
            "startingDeadlineSeconds": 3600,
            "jobTemplate": {"spec": _spec(chain, "next", command)},
        },
    }


def _spec(chain: Chain, stage: str, command: list[str]) -> dict[str, Any]:
    needs, own = chain.cluster.resources(stage), chain.cluster.kubernetes
    claims = {"name": "work", "persistentVolumeClaim": {"claimName": own.claim}}
    pod: dict[str, Any] = {
        "restartPolicy": "Never",
        "terminationGracePeriodSeconds": GRACE_S,
        "securityContext": {
            "runAsNonRoot": own.user != 0,
            "runAsUser": own.user,
            "runAsGroup": own.user,
            "fsGroup": own.user,
            "fsGroupChangePolicy": "OnRootMismatch",
            "seccompProfile": {"type": "RuntimeDefault"},
        },
        "containers": [_container(chain, stage, command)],
        # Workers of torch hand tensors over in shared memory, of which a container has 64 MiB.
        "volumes": [claims, {"name": "shm", "emptyDir": {"medium": "Memory"}}],
    }
    pod |= {"serviceAccountName": own.service_account} if own.service_account else {}
    pod |= {"nodeSelector": dict(sorted(own.node_selector.items()))} if own.node_selector else {}
    hopeless = {"containerName": "mmgrpo", "operator": "In", "values": HOPELESS}
    return {
        "backoffLimit": needs["retries"],
        "activeDeadlineSeconds": 60 * needs["minutes"] * (needs["retries"] + 1),
        "podFailurePolicy": {
            "rules": [
                {"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}]},
                {"action": "FailJob", "onExitCodes": hopeless},
            ]
        },
        "template": {"metadata": {"labels": _labels(chain)}, "spec": pod},
    }


def _container(chain: Chain, stage: str, command: list[str]) -> dict[str, Any]:
    needs, own = chain.cluster.resources(stage), chain.cluster.kubernetes
    limits = {"memory": f"{needs['memory_gib']}Gi"} | ({own.gpu_resource: str(needs["gpus"])} if needs["gpus"] else {})
    if chain.cluster.setup:
        command = ["bash", "-c", "\n".join([*chain.cluster.setup, f"exec {shlex.join(command)}"])]
    return {
        "name": "mmgrpo",
        "image": own.image,
        "workingDir": chain.cluster.project,
        "command": command,
        "env": [*_plain(chain), *_secret(chain)],
        "resources": {"requests": {"cpu": str(needs["cpus"]), **limits}, "limits": limits},
        "securityContext": {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}},
        "volumeMounts": [{"name": "work", "mountPath": own.mount}, {"name": "shm", "mountPath": "/dev/shm"}],  # noqa: S108 - a mount, no file
    }


def _plain(chain: Chain) -> list[dict[str, Any]]:
    return [{"name": name, "value": value} for name, value in sorted(chain.cluster.environment.items())]


def _secret(chain: Chain) -> list[dict[str, Any]]:
    found = []
    for name, place in sorted(chain.cluster.secrets.items()):
        secret, slash, key = place.partition("/")
        if not (secret and slash and key) or "/" in key:
            raise RecipeError(f"secrets.{name} is {place!r}: for Kubernetes expected SECRET/KEY")
        found.append({"name": name, "valueFrom": {"secretKeyRef": {"name": secret, "key": key}}})
    return found


def _about(chain: Chain, name: str) -> dict[str, Any]:
    own = chain.cluster.kubernetes
    return {"name": name, "labels": _labels(chain)} | ({"namespace": own.namespace} if own.namespace else {})


def _labels(chain: Chain) -> dict[str, str]:
    return {"app.kubernetes.io/name": "mmgrpo", "app.kubernetes.io/instance": _name(chain.recipe.name)}


def _name(*parts: str) -> str:
    """A DNS label: lower case, digits and hyphens, 52 characters at most (a CronJob adds eleven)."""
    return re.sub(r"[^a-z0-9]+", "-", "-".join(("mmgrpo", *parts)).lower()).strip("-")[-52:].strip("-")


def _text(manifest: dict[str, Any]) -> str:
    """JSON, which Kubernetes reads as it reads YAML."""
    return json.dumps(manifest, indent=2) + "\n"


def _run(chain: Chain, jobs: list[tuple[str, str]]) -> str:
    seconds = {stage: 60 * chain.cluster.resources(stage)["minutes"] for stage in chain.every_stage()}
    longest = max(seconds.values()) * (1 + max(chain.cluster.resources(stage)["retries"] for stage in seconds))
    space = f" --namespace {chain.cluster.kubernetes.namespace}" if chain.cluster.kubernetes.namespace else ""
    lines = [
        "#!/bin/bash",
        "# Runs the jobs of one iteration, one after another. Finished stages are skipped when it is run again.",
        "set -euo pipefail",
        'here=$(cd "$(dirname "$0")" && pwd)',
        "job() {",
        f'  kubectl{space} delete job "$2" --ignore-not-found --wait',
        f'  kubectl{space} apply -f "$here/$1"',
        f"  deadline=$((SECONDS + {longest}))",
        "  while true; do",
        f'    ended=$(kubectl{space} get job "$2" -o \'jsonpath={{.status.conditions[?(@.status=="True")].type}}\')',
        '    case " $ended " in',
        '      *" Complete "*) return 0 ;;',
        f'      *" Failed "*) echo "$2 failed: kubectl{space} logs job/$2" >&2; return 1 ;;',
        "    esac",
        '    [ "$SECONDS" -lt "$deadline" ] || { echo "$2 is late" >&2; return 1; }',
        "    sleep 5",
        "  done",
        "}",
        *([f'kubectl{space} apply -f "$here/{SERVICE}"'] if chain.cluster.resources("train")["nodes"] > 1 else []),
        *(f"job {file} {name}" for file, name in jobs),
    ]
    return "\n".join(lines) + "\n"
