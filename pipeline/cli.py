"""The command line. Heavy libraries are imported by the command that needs them, so `--help` answers at once."""

from __future__ import annotations

import argparse
import contextlib
import errno
import importlib
import io
import os
import signal
import sys
import threading
import tomllib
import traceback
from collections.abc import Sequence
from pathlib import Path

from pipeline.commands.arguments import refuse_addresses
from pipeline.launch import own_device, refuse_many
from pipeline.remote.attached import detach, refresh, shown
from pipeline.terminal import guard_logs, say
from schemas.errors import MmgrpoError

COMMANDS = (
    "run",
    "next",
    "plan",
    "stage",
    "evaluate",
    "status",
    "release",
    "rollback",
    "serve",
    "render",
    "study",
    "ingest",
    "snapshot",
    "forget",
    "verify",
    "lineage",
    "diff",
    "reproduce",
    "report",
    "costs",
    "export",
    "doctor",
)
"""In the order of `mmgrpo --help`; each is a file of `pipeline/commands`."""
_MAY = "Run this as a user who may write there, or on a copy"
REFUSALS = {
    errno.EACCES: _MAY,
    errno.EPERM: _MAY,
    errno.EROFS: _MAY,
    errno.ENOSPC: "Make room, then type the same again",
    errno.EDQUOT: "Make room, then type the same again",
}
"""What a machine may refuse a command, and what to do: no defect."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Entry point of `mmgrpo`. Returns the exit code, as the README lists them; 2 is a recipe or the usage."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # a locale without "·" must not stop a run
    detach()
    options = _parser().parse_args(arguments)
    _environment(options)
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, _terminate)  # a scheduler's notice before it kills
    try:
        if (options.command, getattr(options, "name", None)) != ("stage", "train"):
            refuse_many(options.command)
        refuse_addresses(options)
        refresh()
        return int(options.do(options))
    except MmgrpoError as error:
        say(shown(f"mmgrpo: {error}"), file=sys.stderr)
        return error.exit_code
    except BrokenPipeError:
        # Whoever read the output has stopped, as `| head` does. Nothing more may be written to it, not even at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except Exception as error:  # noqa: BLE001 - the last resort: whole traceback, and the exit code of a failed stage
        if text := _of_machine(error):
            say(f"mmgrpo: {text}", file=sys.stderr)
            return 4
        say(traceback.format_exc(), end="", file=sys.stderr)
        say("mmgrpo: a defect, in mmgrpo or in the program it runs. What was committed is kept.", file=sys.stderr)
        return 4
    except KeyboardInterrupt as stopped:
        say("mmgrpo: interrupted; what was committed is kept, the same command goes on from there", file=sys.stderr)
        return 128 + (signal.SIGTERM if isinstance(stopped, _Terminated) else signal.SIGINT)
    finally:
        detach()


def _of_machine(error: Exception) -> str | None:
    """What the machine did not allow, in words; None for every other error."""
    if not isinstance(error, OSError) or error.errno not in REFUSALS or error.filename is None:
        return None
    return f"{error.filename}: {error.strerror}. {REFUSALS[error.errno]}; what was committed is kept."


class _Terminated(KeyboardInterrupt):
    """SIGTERM ends a command the way Ctrl-C does."""


def _terminate(number: int, frame: object) -> None:
    del frame
    signal.signal(number, signal.SIG_IGN)  # schedulers send it twice; one is enough to end on
    raise _Terminated


def _environment(options: argparse.Namespace) -> None:
    """Settings that libraries read when they are imported."""
    os.environ.setdefault("HF_HUB_DISABLE_TELEMETRY", "1")
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    # Threads that spin while they wait make a busy machine ten times slower; sleeping ones cost little on an idle one.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    own_device()
    guard_logs()
    if threads := _threads(options):
        os.environ["OMP_NUM_THREADS"] = os.environ["POLARS_MAX_THREADS"] = threads


def _threads(options: argparse.Namespace) -> str | None:
    """The `threads` of the execution settings, read before any library that wants to know them is imported."""
    found: str | None = None
    file: Path | None = getattr(options, "execution", None)
    if file is not None and file.is_file():
        with contextlib.suppress(ValueError, RecursionError):  # reported when the file is read for good
            found = str(tomllib.loads(file.read_text(encoding="utf-8-sig")).get("threads") or "") or None
    given = [text.removeprefix("threads=") for text in getattr(options, "exec", []) if text.startswith("threads=")]
    return given[-1] if given else found


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="mmgrpo", formatter_class=_Formatter)
    parser.description = "Train the language model inside a multi-module LM program, offline, from one score."
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for name in COMMANDS:
        command = importlib.import_module(f"pipeline.commands.{name}")
        text: str = command.TEXT
        added = commands.add_parser(name, help=text, description=f"{text[0].upper()}{text[1:]}.")
        command.arguments(added)
        added.set_defaults(do=command.do)
    return parser


class _Formatter(argparse.HelpFormatter):
    """Wide enough for the command list to stay on one line each."""

    def __init__(self, prog: str) -> None:
        super().__init__(prog, max_help_position=28, width=110)
        self._action_max_length = 4 + max(map(len, COMMANDS))  # argparse forgets that commands are indented twice


if __name__ == "__main__":
    sys.exit(main())
