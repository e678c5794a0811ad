"""The command line. Heavy libraries are imported by the command that needs them, so `--help` answers at once."""

from __future__ import annotations

import argparse
import contextlib
import io
import os
import sys
import tomllib
import traceback
from collections.abc import Sequence
from pathlib import Path

from pipeline.launch import own_device, refuse_many
from schemas.errors import MmgrpoError

STAGES = ("examples", "program", "base", "prompts", "rollout", "teacher", "group", "logprobs", "train", "evaluate")


def main(arguments: Sequence[str] | None = None) -> int:
    """Entry point of `mmgrpo`. Returns the exit code: 0 done, 2 recipe or usage, 3 data, 4 stage failed, 75 locked."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # a locale without "·" must not stop a run
    options = _parser().parse_args(arguments)
    _environment(options)
    from pipeline import commands

    try:
        if (options.command, getattr(options, "name", None)) != ("stage", "train"):
            refuse_many(options.command)
        return int(getattr(commands, f"do_{options.command}")(options))
    except MmgrpoError as error:
        print(f"mmgrpo: {error}", file=sys.stderr)
        return error.exit_code
    except BrokenPipeError:
        # Whoever read the output has stopped, as `| head` does. Nothing more may be written to it, not even at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except Exception:  # noqa: BLE001 - the last resort: whole traceback, and the exit code of a failed stage
        traceback.print_exc()
        print("mmgrpo: a defect, in mmgrpo or in the program it runs. What was committed is kept.", file=sys.stderr)
        return 4
    except KeyboardInterrupt:
        print("mmgrpo: interrupted; what was committed is kept, the same command goes on from there", file=sys.stderr)
        return 130


def _environment(options: argparse.Namespace) -> None:
    """Settings that libraries read when they are imported."""
    os.environ.setdefault("HF_HUB_DISABLE_TELEMETRY", "1")
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    # Threads that spin while they wait make a busy machine ten times slower; sleeping ones cost little on an idle one.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    own_device()
    if threads := _threads(options):
        os.environ["OMP_NUM_THREADS"] = os.environ["POLARS_MAX_THREADS"] = threads


def _threads(options: argparse.Namespace) -> str | None:
    """The `threads` of the execution settings, read before any library that wants to know them is imported."""
    found: str | None = None
    file: Path | None = getattr(options, "execution", None)
    if file is not None and file.is_file():
        with contextlib.suppress(
            tomllib.TOMLDecodeError, UnicodeDecodeError
        ):  # reported when the file is read for good
            found = str(tomllib.loads(file.read_text(encoding="utf-8-sig")).get("threads") or "") or None
    given = [text.removeprefix("threads=") for text in getattr(options, "exec", []) if text.startswith("threads=")]
    return given[-1] if given else found


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="mmgrpo", description=__doc__, formatter_class=_Formatter)
    parser.description = "Train the language model inside a multi-module LM program, offline, from one score."
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    _recipe_command(commands, "run", "run all iterations of a recipe; what is up to date is skipped")
    _recipe_command(commands, "plan", "say what a run would do, and why")
    stage = _recipe_command(commands, "stage", "run one stage of one iteration, as one batch job", name_first=True)
    stage.add_argument("--iteration", type=_count, default=0, metavar="I", help="which iteration (default 0)")
    evaluate = _recipe_command(commands, "evaluate", "score the base and the newest policy on the test split")
    evaluate.add_argument(
        "--test",
        action="store_true",
        required=True,
        help="required: the held-out split is meant; each opening is counted",
    )
    serve = _recipe_command(commands, "serve", "start vLLM as a server of the base and the run's newest policy")
    serve.add_argument("--host", default="127.0.0.1", help="address to listen at (default 127.0.0.1)")
    serve.add_argument("--port", type=_count, default=8000, help="port to listen at (default 8000)")
    serve.add_argument("--print", action="store_true", dest="only_print", help="print the command, start nothing")
    _study_command(commands)
    _ingest_command(commands)
    _snapshot_command(commands)
    _forget_command(commands)
    _run_command(commands, "verify", "check every byte of a run against its manifests")
    lineage = _run_command(commands, "lineage", "which rollouts trained an adapter; what came of a rollout")
    lineage.add_argument(
        "--policy", metavar="DIGEST", help="the rollouts behind this policy (the first digits will do)"
    )
    lineage.add_argument("--rollout", metavar="ID", help="what came of this rollout (the first digits will do)")
    lineage.add_argument("--json", action="store_true", help="machine-readable output")
    _run_command(commands, "report", "write report.html and report.json into the run folder")
    export = commands.add_parser("export", help="write the groups of an iteration joined with their tokens")
    export.add_argument("what", choices=["groups"])
    export.add_argument("run", type=Path, help="a run folder")
    export.add_argument("target", type=Path, help="the Parquet file to write")
    export.add_argument("--iteration", type=_count, default=0, metavar="I", help="which iteration (default 0)")
    doctor = commands.add_parser("doctor", help="what is installed, what is missing, and what mends it")
    doctor.add_argument("--cache", type=Path, help="folder of converted models")
    _execution(doctor)
    return parser


def _recipe_command(
    commands: argparse._SubParsersAction[argparse.ArgumentParser], name: str, text: str, *, name_first: bool = False
) -> argparse.ArgumentParser:
    parser = commands.add_parser(name, help=text, description=f"{text[0].upper()}{text[1:]}.")
    if name_first:
        parser.add_argument("name", choices=STAGES, help="the stage")
    parser.add_argument("recipe", type=Path, help="a recipe file (TOML)")
    parser.add_argument("--run-dir", type=Path, metavar="D", help="the run folder (default: runs/NAME of the recipe)")
    if name in {"run", "plan"}:
        parser.add_argument("--iterations", type=_count, metavar="N", help="iterations (default: run.iterations)")
    _settings(parser)
    return parser


def _study_command(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    text = "compare strategies on tasks over seeds; what is up to date is skipped"
    parser = commands.add_parser("study", help=text, description=f"{text[0].upper()}{text[1:]}.")
    parser.add_argument("study", type=Path, help="a study file (TOML)")
    parser.add_argument("--study-dir", type=Path, metavar="D", help="the study's folder (default: runs/NAME)")
    _settings(parser)


def _ingest_command(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    text = "logged traces become a snapshot: the tables that a rollout stage writes"
    parser = commands.add_parser("ingest", help=text, description=f"{text[0].upper()}{text[1:]}.")
    parser.add_argument("recipe", type=Path, help="a recipe file (TOML): the program's inputs, and [ingest]")
    parser.add_argument("addresses", nargs="+", metavar="TRACES", help="files, folders, patterns in quotes, or URLs")
    parser.add_argument(
        "--format", default="auto", metavar="F", help="of all files (default: seen from what they hold)"
    )
    parser.add_argument("--snapshots", type=Path, default=Path("snapshots"), metavar="D", help="folder of snapshots")
    parser.add_argument("--onto", type=Path, metavar="SNAPSHOT", help="add the traces to this snapshot, as its child")
    parser.add_argument("--rescore", action="store_true", help="score the logged outputs with the program's metric")
    parser.add_argument(
        "--suggest-modules", action="store_true", help="print rules for the calls that no module is known for, and stop"
    )
    _settings(parser)


def _snapshot_command(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = commands.add_parser("snapshot", help="compare two snapshots of traces, or export one as a data set")
    kinds = parser.add_subparsers(dest="what", required=True, metavar="WHAT")
    diff = kinds.add_parser("diff", help="which traces came, went and changed from one snapshot to another")
    diff.add_argument("before", type=Path, help="a snapshot's folder")
    diff.add_argument("after", type=Path, help="another one's")
    diff.add_argument("--json", action="store_true", help="machine-readable output, with every id")
    export = kinds.add_parser("export", help="write a Hugging Face dataset folder with a card")
    export.add_argument("snapshot", type=Path, help="a snapshot's folder")
    export.add_argument("folder", type=Path, help="the folder to write; it must not exist")


def _forget_command(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    text = "delete traces from all snapshots, and say what they had reached"
    parser = commands.add_parser("forget", help=text, description=f"{text[0].upper()}{text[1:]}.")
    parser.add_argument("--trace", action="append", default=[], metavar="ID", help="a trace's id; may be repeated")
    parser.add_argument("--user", action="append", default=[], metavar="KEY", help="all traces of a user, by its key")
    parser.add_argument("--snapshots", type=Path, default=Path("snapshots"), metavar="D", help="folder of snapshots")
    parser.add_argument("--runs", type=Path, nargs="*", metavar="RUN", help="run folders (default: all below runs/)")
    parser.add_argument("--reason", default="requested", metavar="TEXT", help="why, for the tombstone")
    parser.add_argument("--json", action="store_true", help="machine-readable output")


def _settings(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="FIELD=VALUE",
        help="set a recipe field (schemas/recipe*.py list them); may be repeated",
    )
    _execution(parser)


def _execution(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--execution", type=Path, metavar="FILE", help="execution settings (TOML); never part of a key")
    parser.add_argument(
        "--exec",
        action="append",
        default=[],
        metavar="FIELD=VALUE",
        help="set an execution field (schemas/execution.py lists them); may be repeated",
    )


def _run_command(
    commands: argparse._SubParsersAction[argparse.ArgumentParser], name: str, text: str
) -> argparse.ArgumentParser:
    parser = commands.add_parser(name, help=text, description=f"{text[0].upper()}{text[1:]}.")
    parser.add_argument("run", type=Path, help="a run folder")
    return parser


def _count(text: str) -> int:
    number = int(text)
    if number < 0:
        raise argparse.ArgumentTypeError(f"{text} is negative")
    return number


class _Formatter(argparse.HelpFormatter):
    """Wide enough for the command list to stay on one line each."""

    def __init__(self, prog: str) -> None:
        super().__init__(prog, max_help_position=28, width=110)


if __name__ == "__main__":
    sys.exit(main())
