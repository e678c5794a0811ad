"""Where the figures of each step go beside the steps table: TensorBoard, W&B, MLflow or trackio.

transformers' own integrations do the talking. Their keys stay in the environment variables that they read; nothing of
them is in the settings that they are shown.
"""

from __future__ import annotations

import contextlib
import copy
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from schemas.execution import Execution

_FOLDERS = {
    "tensorboard": "TENSORBOARD_LOGGING_DIR",
    "wandb": "WANDB_DIR",
    "mlflow": "MLFLOW_TRACKING_URI",
    "trackio": "TRACKIO_DIR",
}
"""Environment variable that says where an integration writes on this machine."""


@contextlib.contextmanager
def tracked(execution: Execution, name: str) -> Iterator[None]:
    """For the length of the block, trackers that were not told otherwise write below `report_dir`.

    Args:
        execution: which trackers, and where.
        name: what is trained; TensorBoard shows one line a folder.
    """
    before = dict(os.environ)
    for tracker in execution.report_to:
        if execution.report_dir is not None and _FOLDERS[tracker] not in os.environ:
            folder = Path(execution.report_dir) / tracker
            folder = folder / name if tracker == "tensorboard" else folder
            folder.mkdir(parents=True, exist_ok=True)
            os.environ[_FOLDERS[tracker]] = folder.as_uri() if tracker == "mlflow" else str(folder)
    try:
        yield
    finally:
        for variable in _FOLDERS.values():
            os.environ.pop(variable, None)
            if variable in before:
                os.environ[variable] = before[variable]


def report(trainer: Any, row: dict[str, Any]) -> None:
    """Tell the trackers of a step, counted over the run.

    Args:
        trainer: a transformers trainer, within its training.
        row: the step's row, with its `ages` and `modules`.
    """
    if not trainer.args.report_to:
        return
    state = copy.copy(trainer.state)
    state.global_step = row["step"]
    trainer.callback_handler.on_log(trainer.args, state, trainer.control, figures(row))


def figures(row: dict[str, Any]) -> dict[str, float]:
    """The numbers of a step that are known, those of each module by its name."""
    flat = {name: value for name, value in row.items() if isinstance(value, (int, float)) and name != "step"}
    norms = {f"grad_norm/{each['module']}": each["grad_norm"] for each in row["modules"]}
    shares = {f"ess/age {each['age']}": each["ess"] for each in row["ages"] if len(row["ages"]) > 1}
    return flat | {name: value for name, value in (norms | shares).items() if value is not None}
