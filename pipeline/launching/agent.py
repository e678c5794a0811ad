"""torchrun for one node: `python -m pipeline.launching.agent FOLDER PARENT CONFIG SIZE ARGUMENTS…`.

Beside `python -m torch.distributed.run` it ends when the command that started it does, sets what a file of accelerate
says of FSDP, and writes down which process failed and how.
"""

from __future__ import annotations

import importlib
import json
import os
import shutil
import sys
from pathlib import Path
from typing import Any

from pipeline.launching.failures import FAILURES, note
from pipeline.launching.fsdp import fsdp_environment
from pipeline.launching.watch import end_with
from schemas.errors import MmgrpoError


def main(folder: Path, parent: int, config: str, size: int, arguments: list[str]) -> int:
    """Returns 0 when every process of this node did."""
    end_with(parent)
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError

    torchrun: Any = importlib.import_module("torch.distributed.run")
    try:
        os.environ.update(fsdp_environment(config, size) if config else {})
        torchrun.run(torchrun.parse_args(arguments))
    except MmgrpoError as error:
        note(folder, "agent", error)
        return error.exit_code
    except ChildFailedError as error:
        found = [
            {"rank": rank, "local_rank": failure.local_rank, "exit": failure.exitcode}
            for rank, failure in sorted(error.failures.items())
        ]
        (folder / FAILURES).write_text(json.dumps(found))
        return 1
    finally:
        if os.getppid() != parent:  # it was killed, and nobody else takes the folder away
            shutil.rmtree(folder, ignore_errors=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3], int(sys.argv[4]), sys.argv[5:]))
