"""What somebody may make up in the records of a run who also makes every digest that follows anew.

Commands that read such a run refuse it by the name of the file that was changed, or answer as they did before.
"""

from __future__ import annotations

import contextlib
import io
import json
import re
import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass
from http import HTTPStatus
from pathlib import Path
from typing import Any

import polars as pl

from pipeline.browsing.answers import PAGES, ROLLOUT, answer
from pipeline.browsing.live import Live
from pipeline.cli import main
from pipeline.manifests import MANIFEST
from pipeline.runfile import RunFile, read_run
from schemas.canonical import canonical_json, digest, digest_file
from schemas.errors import DataError, MmgrpoError
from schemas.foreign import read_json
from schemas.manifest import TELEMETRY, FileEntry, artifact_digest
from tests.fuzz.mutate import places

DELETED, ADDED = object(), object()
"""A part that is taken out, and one that nobody knows."""
VALUES: tuple[Any, ...] = (
    DELETED,
    ADDED,
    None,
    True,
    0,
    -1,
    2**31,
    2**63,
    10**400,
    1.5,
    1e308,
    "",
    "NaN",
    "text",
    "x" * 3000,
    "0" * 64,
    "../../../etc/passwd",
    "/dev/zero",
    "a\u202e\u001b[31m\n\u0000b",
    [],
    ["x"],
    [None],
    {},
    {"": {"": None}},
    {"a": 1},
    json.loads("[" * 40 + "]" * 40),
    json.loads('{"a":' * 40 + "1" + "}" * 40),
)
SETTLED = {"digest", "manifest_digest", "key", "parent"}
"""Digests that are made again, so that changing them alone is told at once."""


@dataclass(frozen=True)
class Forgery:
    """One change of one record."""

    file: str
    """Within the run's folder, before the change."""
    path: tuple[Any, ...]
    value: Any

    def __str__(self) -> str:
        value = {DELETED: "(deleted)", ADDED: "(added to)"}.get(self.value) if _marks(self.value) else None
        return f"{self.file}: {'.'.join(map(str, self.path))} = {value or repr(self.value)[:60]}"

    def apply(self, record: Any) -> Any:
        """The record with the change."""
        changed = {"": deepcopy(record)}
        *way, last = ("", *self.path)
        holder: Any = changed
        for step in way:
            holder = holder[step]
        if self.value is DELETED:
            del holder[last]
        elif self.value is ADDED:
            inner = holder[last]
            inner.append("added") if isinstance(inner, list) else inner.update(added={"by": ["nobody"]})
        else:
            holder[last] = deepcopy(self.value)
        return changed[""]

    def changes_kind(self, record: Any) -> bool:
        """Whether what stands there now is of another kind of JSON than what stood there. What was null may be any."""
        if _marks(self.value):
            return self.value is DELETED and TELEMETRY not in self.file  # of which any part may be unknown
        was = record
        for step in self.path:
            was = was[step]
        return was is not None and _kind(was) != _kind(self.value)


def _marks(value: Any) -> bool:
    return value is DELETED or value is ADDED


def _kind(value: Any) -> str:
    names = {bool: "truth", int: "number", float: "number", str: "text", list: "list", dict: "object"}
    return names.get(type(value), "null")


def forgeries(folder: Path) -> Iterator[Forgery]:
    """Every change of every record of a run."""
    for file in records(folder):
        whole = document(folder / file)
        for path in places(whole):
            if not path or path[-1] in SETTLED:
                continue
            holder = whole
            for step in path[:-1]:
                holder = holder[step]
            for value in VALUES:
                if value is ADDED and not isinstance(holder[path[-1]], (dict, list)):
                    continue
                if _marks(value) or value != holder[path[-1]] or type(value) is not type(holder[path[-1]]):
                    yield Forgery(file, path, value)


def records(folder: Path) -> list[str]:
    """The records of a run that are JSON."""
    kept = [path for path in folder.rglob("*.json*") if path.suffix in (".json", ".jsonl") and path.name[0] != "."]
    names = sorted(path.relative_to(folder).as_posix() for path in kept)
    return [name for name in names if not name.startswith("report.") and "/adapter/" not in name]


def document(path: Path) -> Any:
    """What stands in a record; a list of its lines where it has some."""
    if path.suffix != ".jsonl":
        return read_json(path)
    return [json.loads(line) for line in path.read_bytes().splitlines()]


def forge(run: Path, forgery: Forgery) -> Path:
    """Make a change in a run's folder, and every digest that follows; returns the file that was changed."""
    path = run / forgery.file
    made_up = forgery.apply(document(path))
    if path.suffix == ".jsonl":
        return _chain(path, made_up)
    if path.name == "run.json":
        path.write_bytes(_sealed_run(made_up))
    elif path.parent.name == "decisions":
        path.write_text(json.dumps(_sealed(made_up, "digest")))
        _chained(run, path)
    elif path.name == MANIFEST:
        return _manifest(run, path, made_up)
    else:
        path.write_text(json.dumps(made_up))
        if (holder := next((up for up in path.parents if (up / MANIFEST).exists()), None)) is not None:
            return _manifest(run, holder / MANIFEST, _with_file(holder, path), told=path.relative_to(holder).as_posix())
    return path


def _with_file(holder: Path, path: Path) -> Any:
    record = read_json(holder / MANIFEST)
    entry = record["files"][path.relative_to(holder).as_posix()]
    entry.update(sha256=digest_file(path), bytes=path.stat().st_size)
    return record


def _manifest(run: Path, path: Path, record: Any, told: str = MANIFEST) -> Path:
    """Seal a manifest, move its folder to where its key says, and have all that names it follow."""
    before = read_json(path)
    with contextlib.suppress(ValueError, TypeError, AttributeError, KeyError):
        entries = {name: FileEntry.model_validate(entry) for name, entry in record["files"].items()}
        record["digest"] = artifact_digest(entries) if entries else record["digest"]
    if "payload" in record:
        record["key"] = digest(record["payload"])
    path.write_text(canonical_json(_sealed(record, "manifest_digest")))
    if record.get("digest", before["digest"]) != before["digest"]:
        _followed(run, before["digest"], record["digest"])
    return _moved(run, path, before["key"], record.get("key", before["key"])).parent / told


def _followed(run: Path, old: str, new: Any) -> None:
    if isinstance(new, str):
        _renamed(run, old, new)
    for path in sorted(run.glob(f"artifacts/*/*/{MANIFEST}")):
        record = read_json(path)
        inputs = record.get("payload", {}).get("inputs", {}) if isinstance(record.get("payload"), dict) else {}
        if isinstance(inputs, dict) and old in inputs.values():
            record["payload"]["inputs"] = {role: new if was == old else was for role, was in inputs.items()}
            before = record["key"]
            record["key"] = digest(record["payload"])
            path.write_text(canonical_json(_sealed(record, "manifest_digest")))
            _moved(run, path, before, record["key"])


def _moved(run: Path, path: Path, old: str, new: Any) -> Path:
    if old == new or not isinstance(new, str):
        return path
    folder = path.parent.rename(path.parent.with_name(new[:16]))
    _renamed(run, old, new)
    return folder / MANIFEST


def _renamed(run: Path, old: str, new: str) -> None:
    """Have what a run records of itself and of releases name a digest's successor."""
    if old in (text := (run / "run.json").read_text()):
        (run / "run.json").write_bytes(_sealed_run(json.loads(text.replace(old, new))))
    for path in sorted((run / "decisions").glob("*.json")):
        if old in (text := path.read_text()):
            path.write_text(json.dumps(_sealed(json.loads(text.replace(old, new)), "digest")))
            _chained(run, path)
    for path in run.glob("*.jsonl"):
        if old in (text := path.read_text()):
            _chain(path, [json.loads(line) for line in text.replace(old, new).splitlines()])


def _sealed(record: Any, name: str) -> Any:
    if not isinstance(record, dict):
        return record
    return record | {name: digest({key: value for key, value in record.items() if key != name})}


def _sealed_run(record: Any) -> bytes:
    with contextlib.suppress(ValueError, TypeError, AttributeError):
        return (canonical_json({**record, "digest": RunFile.model_validate(record).own_digest()}) + "\n").encode()
    return canonical_json(_sealed(record, "digest")).encode()


def _chain(path: Path, lines: list[Any]) -> Path:
    parent, text = "", ""
    for line in lines:
        linked = _sealed({**line, "parent": parent}, "digest") if isinstance(line, dict) else line
        parent = linked["digest"] if isinstance(linked, dict) else ""
        text += canonical_json(linked) + "\n"
    path.write_text(text)
    return path


def _chained(run: Path, changed: Path) -> None:
    """Decisions behind one that was changed name it again."""
    parent = None
    for path in sorted((run / "decisions").glob("*.json")):
        record = read_json(path)
        if parent is not None:
            record = _sealed({**record, "parent": parent}, "digest")
            path.write_text(json.dumps(record))
        if path >= changed:
            parent = record.get("digest")


@dataclass(frozen=True)
class Said:
    """What a command said."""

    code: int
    answer: str
    errors: str

    @property
    def told(self) -> str:
        """Its answer without the digests, which follow from what was made up."""
        return _DIGEST.sub("#", self.answer)


def ask(command: Sequence[str], places: Mapping[str, Path]) -> Said:
    """What a command says of a run."""
    if command[0] == "browse":
        return _browse(places["run"])
    told, failed = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(told), contextlib.redirect_stderr(failed):
        code = main([part.format(**places) for part in command])
    return Said(code, told.getvalue(), failed.getvalue())


def _browse(run: Path) -> Said:
    """What the browser of rollouts answers to every address that it knows."""
    try:
        live, said = Live(run), []
        pages = [answer(live, path, {}) for path in PAGES]
        names = [item["rollout_id"] for item in pl.read_parquet(_rollouts(run), columns=["rollout_id"]).to_dicts()]
        pages += [answer(live, f"{ROLLOUT}{name}", {}) for name in sorted(names)[:2]]
    except MmgrpoError as error:
        return Said(error.exit_code, "", str(error))
    said = [page.body for page in pages if page.status == HTTPStatus.INTERNAL_SERVER_ERROR]
    return Said(3 if said else 0, "", "\n".join(said))


def _rollouts(run: Path) -> list[Path]:
    return sorted(run.glob("artifacts/rollout/*/rollouts.parquet"))


class Forger:
    """Makes up parts of one run's records, and asks commands about each."""

    def __init__(self, whole: Path, recipe: Path, work: Path) -> None:
        self.whole, self.recipe, self.work = whole, recipe, work
        self.forgeries = list(forgeries(whole))
        self._before: dict[tuple[str, ...], Said] = {}

    def judge(self, forgery: Forgery, commands: Iterable[tuple[str, ...]]) -> list[Said]:
        """Every command refuses the run by the name of what was made up, or answers; as before, where a part is of
        another kind than it was.
        """
        changes_kind, found = forgery.changes_kind(document(self.whole / forgery.file)), []
        for command in commands:
            changed, said = self._asked(command, forgery)
            assert "Traceback" not in said.errors, f"{forgery}\n{command}\n{said.errors}"
            assert said.code in {0, 2, 3}, f"{forgery}\n{command}: {said}"
            if said.code == DataError.exit_code:
                named = (str(changed), str(changed.parent), changed.relative_to(self.work / "run").as_posix())
                refusal = said.answer + said.errors
                assert any(name in refusal for name in named), f"{forgery}\n{command}: {changed} is not in {refusal}"
            elif changes_kind and not TELLS_CHANGES & set(command):
                before = self._whole(command)
                assert (said.code, said.told) == (before.code, before.told), f"{forgery}\n{command}: {said}"
            found.append(said)
        return found

    def _whole(self, command: tuple[str, ...]) -> Said:
        if command not in self._before:
            self._before[command] = ask(command, self._places())
        return self._before[command]

    def _asked(self, command: tuple[str, ...], forgery: Forgery) -> tuple[Path, Said]:
        places = self._places()
        changed = forge(places["run"], forgery)
        return changed, ask(command, places)

    def _places(self) -> dict[str, Path]:
        """Fresh copies: commands write."""
        for name in ("run", "out"):
            shutil.rmtree(self.work / name, ignore_errors=True)
        (self.work / "out").mkdir(parents=True)
        shutil.copytree(self.whole, self.work / "run")
        return {"run": self.work / "run", "out": self.work / "out", "whole": self.whole, "recipe": self.recipe}


def commands_for(run: Path) -> tuple[tuple[str, ...], ...]:
    """Every command that reads a run, with what of this one it is asked about."""
    row = pl.read_parquet(_rollouts(run)).sort("rollout_id").row(0, named=True)
    policy = read_run(run).policies[-1]
    return (
        ("status", "{run}"),
        ("verify", "{run}"),
        ("lineage", "{run}"),
        ("lineage", "{run}", "--json"),
        ("lineage", "{run}", "--rollout", row["rollout_id"]),
        ("lineage", "{run}", "--example", row["example_id"]),
        ("lineage", "{run}", "--policy", policy),
        ("costs", "{run}"),
        ("report", "{run}"),
        ("diff", "{run}", "{whole}"),
        ("diff", "{whole}", "{run}", "--json"),
        ("plan", "{recipe}", "--run-dir", "{run}"),
        ("serve", "{recipe}", "--run-dir", "{run}", "--print"),
        ("export", "adapter", "{run}", "{out}/adapter", "--policy", "newest"),
        ("export", "groups", "{run}", "{out}/groups.parquet"),
        ("release", "{run}", "--force", "--reason", "none"),
        ("browse", "{run}"),
    )


_OF_RECIPE = ("{recipe}", "--run-dir", "{run}", "--exec", "progress=off")
DEEP = (
    ("verify", "{run}", "--deep"),
    ("run", *_OF_RECIPE),
    ("next", *_OF_RECIPE),
    ("reproduce", "{run}", "{out}/again"),
    ("rollback", "{run}"),
)
"""What takes seconds, or makes again what is not as it was."""
TELLS_CHANGES = {"diff", "plan", "release", "--deep", "run", "next", "reproduce"}
"""Commands that say what changed, or cannot be made again of that, or when something was done."""
_DIGEST = re.compile(r"[0-9a-f]{12,}")
