"""A cluster: where jobs of a run find their files, and what each stage needs. Read by `mmgrpo render` alone."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field, ValidationInfo, field_validator, model_validator

from schemas.addresses import is_address, split_address
from schemas.sections import Positive, Section, VariableName

Line = Annotated[str, Field(pattern=r"^[^\x00-\x1f\x7f]+$")]
"""Text of one line: it goes into scripts and manifests."""
Name = Annotated[str, Field(pattern=r"^[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?$")]
"""What Slurm and Kubernetes take for a name."""

GPU_STAGES = ("rollout", "teacher", "prompts", "logprobs", "train", "evaluate", "drift")
"""Stages that sample or compute gradients."""


class Resources(Section):
    """What one job asks for. Unset fields of a stage are those of `[defaults]`."""

    cpus: Positive | None = None
    gpus: int | None = Field(default=None, ge=0)
    """Of a node. The train stage runs a process on each."""
    nodes: Positive | None = None
    """Of the train stage: it runs on all of them together."""
    memory_gib: Positive | None = None
    minutes: Positive | None = None
    """Time limit. Two minutes before it the job is asked to end; what it committed is kept and the next try goes on."""
    retries: int | None = Field(default=None, ge=0)
    """Further tries after a failure that another try may mend: the time limit, a lost node, a held run folder."""


class SlurmSection(Section):
    """What is Slurm's own."""

    partition: Name | None = None
    account: Name | None = None
    options: tuple[Line, ...] = ()
    """Further options of sbatch, such as `--constraint=h100`."""

    @field_validator("options")
    @classmethod
    def _are_options(cls, options: tuple[str, ...]) -> tuple[str, ...]:
        for option in options:
            if not option.startswith("--"):
                raise ValueError(f"{option!r}: expected options like --constraint=h100")
        return options


class KubernetesSection(Section):
    """What is Kubernetes' own."""

    image: Line | None = None
    """The container image with mmgrpo and the program. Required to render manifests."""
    namespace: Name | None = None
    claim: Name = "mmgrpo"
    """The PersistentVolumeClaim that holds the project, the run folder and the cache."""
    user: int = Field(default=1000, ge=0)
    """Number of the user and group that containers run as, and that the claim's files are given to: the
    Containerfile's. 0 is root, for images that need it."""
    mount: Line = "/work"
    """Where the claim is mounted."""
    service_account: Name | None = None
    gpu_resource: Line = "nvidia.com/gpu"
    node_selector: dict[str, str] = {}
    schedule: Line = "0 1 * * *"
    """When the CronJob makes one more iteration, in cron's words."""


class Cluster(Section):
    """A file for `mmgrpo render`, in TOML."""

    project: Line
    """The folder, on the cluster, that jobs run in; the recipe's path is relative to it."""
    run_dir: Line
    """The run folder, on the cluster: on a file system with locks and atomic renames; or an address (`s3://…`)."""
    command: Line = "mmgrpo"
    """How mmgrpo is called there, for example `.venv/bin/mmgrpo`."""
    execution: Line | None = None
    """A file of execution settings, relative to `project`."""
    setup: tuple[Line, ...] = ()
    """Shell lines before the command, such as `module load cuda`."""
    environment: dict[VariableName, Line] = {}
    """Variables that are no secrets: they stand in the files as they are."""
    secrets: dict[VariableName, Line] = {}
    """Variables whose values are kept elsewhere. Slurm: the file that holds one. Kubernetes: SECRET/KEY."""
    defaults: Resources = Resources()
    stages: dict[str, Resources] = {}
    """By stage; `next` is the job that makes a whole iteration."""
    slurm: SlurmSection = SlurmSection()
    kubernetes: KubernetesSection = KubernetesSection()

    @field_validator("project", "run_dir")
    @classmethod
    def _absolute(cls, path: str, info: ValidationInfo) -> str:
        if info.field_name == "run_dir" and is_address(path):
            split_address(path)
            return path.rstrip("/")
        if not path.startswith("/"):
            raise ValueError(f"{path!r}: expected an absolute path on the cluster")
        return path.rstrip("/") or "/"

    @field_validator("stages")
    @classmethod
    def _are_stages(cls, stages: dict[str, Resources]) -> dict[str, Resources]:
        for name in stages:
            if name not in (*GPU_STAGES, "base", "group", "next"):
                raise ValueError(f"no stage {name} is run as a job")
        return stages

    @model_validator(mode="after")
    def _nodes_are_for_training(self) -> Cluster:
        for name, needs in {
            "defaults": self.defaults,
            **{f"stages.{name}": each for name, each in self.stages.items()},
        }.items():
            if needs.nodes is not None and needs.nodes > 1 and name != "stages.train":
                raise ValueError(f"{name}.nodes = {needs.nodes}: the train stage alone runs on several nodes")
        if self.resources("train")["nodes"] > 1 and is_address(self.run_dir):
            raise ValueError(
                "stages.train.nodes is more than 1 and run_dir an address: nodes read checkpoints of each other, on a "
                "file system that all share"
            )
        return self

    @model_validator(mode="after")
    def _one_place_for_a_variable(self) -> Cluster:
        if both := sorted(self.environment.keys() & self.secrets.keys()):
            raise ValueError(f"{', '.join(both)}: stands in `environment` and in `secrets`")
        return self

    @property
    def logs(self) -> str:
        """The folder that holds those of the run, on the cluster: the run's own, or the project where that is none."""
        return self.project if is_address(self.run_dir) else self.run_dir

    def resources(self, stage: str) -> dict[str, int]:
        """What a job of the stage asks for, every field: its own, else the defaults', else the house's."""
        house = {"cpus": 4, "gpus": int(stage in (*GPU_STAGES, "next")), "nodes": 1}
        house |= {"memory_gib": 32, "minutes": 240, "retries": 2}
        own = self.stages.get(stage, Resources()).model_dump(exclude_none=True)
        return house | self.defaults.model_dump(exclude_none=True) | own
