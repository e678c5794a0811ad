"""One process of a train stage: `python -m pipeline.launching.rank FOLDER`, started by torchrun."""

from __future__ import annotations

import logging
import os
import sys
from pathlib import Path

from pipeline.launch import own_device
from pipeline.launching.description import LINK, read_description
from pipeline.launching.failures import note
from pipeline.launching.link import LinkedOut
from pipeline.launching.nothing import KeepsNothing
from pipeline.launching.watch import end_with
from pipeline.manifests import SCRATCH
from schemas.errors import MmgrpoError


def main(folder: Path) -> int:
    """Take part in the stage. Process 0 tells the command that started it what came of it."""
    end_with(os.getppid())
    _hush()
    own_device()  # before anything starts CUDA
    from stages import train

    job, rank = read_description(folder), int(os.environ["RANK"])
    try:
        if rank:
            quiet = job.execution.model_copy(update={"report_to": ()})
            train.run(job.inputs, job.recipe, quiet, KeepsNothing(job.partial))
        else:
            out = LinkedOut(folder / LINK, job.partial / SCRATCH)
            out.done(train.run(job.inputs, job.recipe, job.execution, out))
    except (MmgrpoError, OSError) as error:  # raised by the command that started this process
        note(folder, str(rank), error)
        return 1
    return 0


def _hush() -> None:
    """Transformers advises to use a launcher, which this process was started by."""
    logger = logging.getLogger("transformers.training_args")
    logger.addFilter(lambda record: "parallel_mode" not in record.getMessage())


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
