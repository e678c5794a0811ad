"""What chaos found: one file of figures, and the README's table of them.

`python -m tests.chaos.summary RESULT README` writes the table; `--suite FILE` (of all families or some), `--soak FILE`
and `--kinds` put new figures into the result before.
"""

from __future__ import annotations

import argparse
import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

WORDS = {
    "kill": "SIGKILL at a random moment of any stage",
    "term": "SIGTERM",
    "stop": "SIGSTOP; another process is told that the run is in use; then SIGKILL, or SIGCONT",
    "full disk": "a disk with 4 to 128 KiB left",
    "read-only": "a disk that has become read-only after a kill",
    "failing storage": "a call of the system's fails with one of eight errors, or takes up to a second",
    "clock": "the clock jumps by up to ten years either way; files of any age",
    "two schedulers": "two start the same iteration at once, most of them killed",
    "dead holder": "whoever holds a lock is killed; nonsense in its file",
    "corruption": "files with a flipped bit, cut, zeroed, grown, with other bytes, gone, folders in their place",
    "harmed inputs": "the same, of what a stage is about to read",
    "lost manifest": "an artifact without its manifest",
    "server": "a server that fails in {} ways",
    "program crashes": "200 rollouts at once, one in twenty crashes; kills meanwhile",
    "object store": "a run at an S3 address: its machine is killed, another goes on; the store answers 503 for a while",
    "ray": "a worker of Ray's is killed in rollout, evaluate, group or ingest, or the command that it works for",
    "settings": "fields of the recipe set to what they cannot be",
}
WAYS = {
    "kill": "killed",
    "term": "terminated",
    "stop": "stopped for seconds",
    "stop, kill": "stopped and then killed",
    "two": "times two at once",
}
BEGIN, END = "<!-- chaos.json -->\n", "<!-- /chaos.json -->"
"""Between these the README has the table."""
COLUMNS = ("injected", "recovered", "refused", "lost_rows", "doubled_rows")


def table(result: Mapping[str, Any]) -> str:
    """The figures as sentences and a Markdown table."""
    rows = [["fault", "injected", "recovered from", "told in words", "rows lost", "rows doubled"], ["---"] * 6]
    families = result["suite"]["families"]
    for name in sorted(families, key=[*WORDS, *families].index):
        words = WORDS.get(name, name).format(len(families[name]["where"]))
        rows += [[words, *(f"{families[name][column]:,}" for column in COLUMNS)]]
    rows.append(["**all**", *(f"**{result['suite'][column]:,}**" for column in COLUMNS)])
    text = "\n".join(f"| {' | '.join(row)} |" for row in rows)
    return "\n\n".join(filter(None, [text, soak(result.get("soak")), kinds(result.get("kinds"))]))


def soak(found: Mapping[str, Any] | None) -> str:
    """The soak in a few sentences."""
    if found is None:
        return ""
    ways = ", ".join(f"{count} {WAYS[way]}" for way, count in found["disturbed"].items())
    end = "clean" if found["verify_deep"] == 0 else "NOT clean"
    same = f"all {found['artifacts_compared']} artifacts and {found['policies']} policies equal"
    if not found["equal"]:
        same = f"{len(found['artifacts_that_differ'])} artifacts DIFFER from"
    return (
        f"Soak: {found['minutes']:.0f} minutes of `mmgrpo next`, {found['processes']} processes ({ways}), "
        f"{found['iterations']} iterations done. `verify --deep` at the end: {end}; {same} those of a quiet run from "
        f"the same sampled data; {found['lost_rows']} rows lost, {found['doubled_rows']} doubled, "
        f"{found['unexpected_codes']} unexpected exit codes, {found['stray_processes']} stray processes."
    )


def kinds(found: Mapping[str, int] | None) -> str:
    """How many kinds of bad input the tests hand in."""
    if found is None:
        return ""
    return f"Kinds of bad input that tests hand in and see refused: {found['kinds']:,} (`python -m tests.chaos.kinds`)."


def joined(before: Mapping[str, Any] | None, new: Mapping[str, Any]) -> dict[str, Any]:
    """The figures of a suite's families, those of some of them new."""
    from tests.chaos.suite import FAMILIES, total

    held = {} if before is None else before["families"]
    found = {**held, **new["families"]}
    return total({name: found[name] for name in FAMILIES if name in found}, new["seed"])


def in_readme(readme: str, result: Mapping[str, Any]) -> str:
    """The README with the table in its place."""
    place = re.compile(re.escape(BEGIN) + ".*?" + re.escape(END), re.DOTALL)
    assert len(place.findall(readme)) == 1, f"expected one place between {BEGIN.strip()} and {END.strip()}"
    return place.sub(lambda _: f"{BEGIN}{table(result)}\n{END}", readme)


def main() -> None:
    """Take new figures in, and write the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("result", type=Path)
    parser.add_argument("readme", type=Path)
    parser.add_argument("--suite", type=Path)
    parser.add_argument("--soak", type=Path)
    parser.add_argument("--kinds", action="store_true")
    options = parser.parse_args()
    result = json.loads(options.result.read_text()) if options.result.exists() else {}
    if options.suite is not None:
        result["suite"] = joined(result.get("suite"), json.loads(options.suite.read_text()))
    if options.soak is not None:
        result["soak"] = json.loads(options.soak.read_text())
    if options.kinds:
        from tests.chaos import kinds as counting

        found = counting.kinds()
        result["kinds"] = {"kinds": sum(found.values()), **found}
    options.result.write_text(json.dumps(result, indent=1) + "\n")
    options.readme.write_text(in_readme(options.readme.read_text(), result))


if __name__ == "__main__":
    main()
