"""`python -m tests.audit constraints.txt`: known vulnerabilities of what is pinned there, asked of PyPI by pip-audit.

Exit codes: 1 where there are any; 0 where there are none, or where nothing could be asked, which is then said. With
`MMGRPO_TESTS_REQUIRE=audit` an audit that did not take place fails too.
"""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

SECONDS = 120
"""Most time of the whole audit."""


def main(constraints: Path) -> int:
    """Audit a file of pinned packages; the exit code."""
    found = audited(constraints)
    if isinstance(found, str):
        print(f"audit: did not take place: {found}. Nothing is known of {constraints}.")
        return int("audit" in os.environ.get("MMGRPO_TESTS_REQUIRE", "").split(","))
    code, line = verdict(found, constraints)
    print(line)
    return code


def audited(constraints: Path) -> list[dict[str, Any]] | str:
    """What pip-audit says of each package, or why it says nothing."""
    if importlib.util.find_spec("pip_audit") is None:
        return "pip-audit is not installed (pip install --editable '.[audit]')"
    options = ["--no-deps", "--disable-pip", "--format", "json", "--progress-spinner", "off", "--timeout", "10"]
    command = [sys.executable, "-m", "pip_audit", "--requirement", str(constraints), *options]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS, check=False)
        found: list[dict[str, Any]] = json.loads(done.stdout)["dependencies"]
    except subprocess.TimeoutExpired:
        return f"no answer within {SECONDS} s"
    except (ValueError, LookupError, TypeError):
        return f"pip-audit ended with {done.returncode}: {(done.stderr.strip().splitlines() or ['no message'])[-1]}"
    return found


def verdict(found: list[dict[str, Any]], constraints: Path) -> tuple[int, str]:
    """Exit code and what is said. A package that the service does not know was not audited."""
    asked = [item for item in found if "skip_reason" not in item]
    weak = [item for item in asked if item.get("vulns")]
    if weak:
        lines = [
            f"audit: {item['name']} {item['version']}: {vuln['id']}, mended in {', '.join(vuln['fix_versions']) or '?'}"
            for item in weak
            for vuln in item["vulns"]
        ]
        return 1, "\n".join(lines)
    if not asked:
        required = "audit" in os.environ.get("MMGRPO_TESTS_REQUIRE", "").split(",")
        return int(required), (
            f"audit: did not take place: the service knows none of {len(found)} packages. Nothing is known of "
            f"{constraints}."
        )
    rest = f"; {len(found) - len(asked)} could not be audited" if len(asked) < len(found) else ""
    return 0, f"audit: no known vulnerability in {len(asked)} packages of {constraints}{rest}"


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
