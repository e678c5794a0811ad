"""LoRA adapters on disk: their identity, and whether they belong to a base model."""

from __future__ import annotations

import json
import operator
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from schemas.canonical import digest, digest_file
from schemas.errors import DataError, RecipeError
from schemas.foreign import lies_within, parse_json
from schemas.policies import SHARED
from stages.engines.digests import weight_files
from stages.engines.files import read_json

if TYPE_CHECKING:
    from stages.engines.models import BaseModel

WEIGHTS, CONFIG, BASE = "adapter_model.safetensors", "adapter_config.json", "base.json"
SHARED_NAME, SHARED_FOLDER = "shared", "adapter"
SEVERAL_FOLDER, INDEX = "adapters", "modules.json"
_NOT_IDENTITY = frozenset({"base_model_name_or_path", "revision", "peft_version", "auto_mapping"})
_NOT_SERVED = (
    "modules_to_save",
    "trainable_token_indices",
    "alora_invocation_tokens",
    "layer_replication",
    "megatron_config",  # with which PEFT imports the module that `megatron_core` names
)
_KEEPS_THE_BASE = (True, False, "gaussian", "orthogonal")
"""Ways to start an adapter that leave the base's weights alone; the others change them again when it is loaded."""
_PREFIX = "base_model.model."
_LONGEST_HEADER = 100_000_000
"""Most bytes of a safetensors header, as the format has it."""


@dataclass(frozen=True)
class AdapterSet:
    """The adapters of a train artifact: PEFT folders, and which module each serves."""

    names: dict[str, str]
    """Adapter name by module; `{"*": "shared"}` where all modules share one. A module not named has the base."""
    folders: dict[str, Path]
    """Folder by adapter name."""

    @property
    def by_module(self) -> dict[str, Path]:
        """Folder by module, under "*" where all share one."""
        return {module: self.folders[name] for module, name in self.names.items()}

    def digests(self) -> dict[str, str]:
        """Digest by module: what the policies table holds."""
        found = {name: adapter_digest(folder) for name, folder in self.folders.items()}
        return {module: found[name] for module, name in self.names.items()}


def read_adapters(artifact: Path) -> AdapterSet:
    """The adapters in a train artifact's folder: `adapter/`, or `adapters/NAME/` beside `adapters/modules.json`."""
    several = artifact / SEVERAL_FOLDER
    if not several.is_dir():
        return AdapterSet({SHARED: SHARED_NAME}, {SHARED_NAME: artifact / SHARED_FOLDER})
    names = {str(module): str(name) for module, name in read_json(several / INDEX).items()}
    for name in names.values():
        if not lies_within(name) or "/" in name:
            raise DataError(f"{several / INDEX}: {name!r} names no folder beside it: restore the file")
    return AdapterSet(names, {name: several / name for name in sorted(set(names.values()))})


def adapter_digest(folder: Path) -> str:
    """The identity of an adapter: its weights' bytes and its config, without paths and versions, lists sorted.

    PEFT writes `target_modules` in random order, hence the sorting.

    Raises:
        DataError: when the folder is no PEFT adapter with safetensors weights.
    """
    config = {key: _sorted(value) for key, value in _config(folder).items() if key not in _NOT_IDENTITY}
    return digest({"weights": digest_file(folder / WEIGHTS), "config": config})


def _sorted(value: Any) -> Any:
    # At most as deep as `read_json` lets JSON be.
    if isinstance(value, list):
        return sorted((_sorted(item) for item in value), key=lambda item: json.dumps(item, sort_keys=True))
    if isinstance(value, dict):
        return {key: _sorted(item) for key, item in value.items()}
    return value


def _config(folder: Path) -> dict[str, Any]:
    for name in (CONFIG, WEIGHTS):
        if not (folder / name).is_file():
            raise DataError(f"the adapter folder {folder} has no {name}: expected a PEFT adapter saved as safetensors")
    try:
        return read_json(folder / CONFIG)
    except RecipeError as error:
        raise DataError(str(error)) from error


def check_adapter(folder: Path, base: BaseModel) -> None:
    """Refuse an adapter that was not made for this base.

    The trainer leaves the digest of its base in `base.json`; the shapes are compared in any case.

    Raises:
        DataError: naming the first digest or tensor that does not fit.
    """
    config = _config(folder)
    if config.get("peft_type") != "LORA":
        raise DataError(f"the adapter {folder} is of type {config.get('peft_type')}, expected LORA")
    _check_served(folder, config)
    made_for = read_json(folder / BASE).get("base", base.digest)
    if made_for != base.digest:
        raise DataError(
            f"the adapter {folder} was trained on the base {made_for}, but model.base '{base.name}' is {base.digest}: "
            "name the base that it was trained on, or train anew"
        )
    _check_shapes(folder, base)


def _check_served(folder: Path, config: dict[str, Any]) -> None:
    """Refuse what the embedded engine would leave out or apply wrongly: it knows linear layers in the decoder alone."""
    wrong = [name for name in _NOT_SERVED if config.get(name)]
    wrong += ["bias"] if config.get("bias", "none") != "none" else []
    wrong += ["init_lora_weights"] if config.get("init_lora_weights", True) not in _KEEPS_THE_BASE else []
    targets = config.get("target_modules") or []
    listed = [targets] if isinstance(targets, str) else targets
    fine = isinstance(listed, list) and all(isinstance(name, str) for name in listed)
    wrong += ["target_modules"] if not fine or "lm_head" in listed else []
    if wrong:
        told = ", ".join(f"{name} = {config[name]!r}" for name in wrong)
        raise DataError(
            f"the adapter {folder} has {told}, which is not supported: adapters change linear layers of the decoder, "
            "and neither the output embedding, biases nor the base's own weights"
        )


def _check_shapes(folder: Path, base: BaseModel) -> None:
    shapes: dict[str, list[int]] = {}
    for file in weight_files(base.path):
        shapes |= tensor_shapes(file)
    own = tensor_shapes(folder / WEIGHTS)
    _check_ranks(folder, [shape[0] for name, shape in own.items() if name.endswith(".lora_A.weight") and shape])
    for name, shape in sorted(own.items()):
        module, _, kind = name.removeprefix(_PREFIX).partition(".lora_")
        if kind not in ("A.weight", "B.weight"):
            continue  # magnitudes, biases: PEFT checks these when it loads them
        expected = shapes.get(f"{module}.weight")
        side = 1 if kind == "A.weight" else 0  # A is (r, in), B is (out, r), the base's weight is (out, in)
        if expected is None or len(shape) != 2 or shape[side] != expected[side]:
            was = f"shape {expected}" if expected else "no such module"
            raise DataError(
                f"the adapter {folder} does not fit model.base '{base.name}': {name} has shape {shape}, where the base "
                f"has {was}"
            )


def _check_ranks(folder: Path, ranks: list[int]) -> None:
    """Refuse ranks beyond those of the weights: for these PEFT would take memory before it compares shapes."""
    config = _config(folder)
    patterns = config.get("rank_pattern") or {}
    told = [config.get("r", 8), *(patterns.values() if isinstance(patterns, dict) else [patterns])]
    for rank in told:
        if not isinstance(rank, int) or not 0 < rank <= max(ranks, default=0):
            raise DataError(
                f"the adapter {folder} has r = {rank!r} in its {CONFIG}, and weights of rank {max(ranks, default=0)}"
            )


def tensor_shapes(file: Path) -> dict[str, list[int]]:
    """Shapes of the tensors of a safetensors file, read from its header alone.

    Raises:
        DataError: when the file is truncated or no safetensors file.
    """
    try:
        size = file.stat().st_size
        with file.open("rb") as stream:
            (length,) = struct.unpack("<Q", stream.read(8))
            header = parse_json(stream.read(min(length, size, _LONGEST_HEADER)))
        entries = {name: entry for name, entry in header.items() if name != "__metadata__"}
        shapes = {name: [operator.index(side) for side in entry["shape"]] for name, entry in entries.items()}
        end = max((operator.index(entry["data_offsets"][1]) for entry in entries.values()), default=0)
    except (struct.error, ValueError, AttributeError, LookupError, TypeError) as error:
        raise DataError(f"{file} is no safetensors file ({error}): restore it or make it again") from error
    if 8 + length + end != size:
        raise DataError(
            f"{file} has {size} bytes where its header tells {8 + length + end}: restore it or make it again"
        )
    return shapes


def without_folder(name: str) -> str:
    """A hub id (`owner/name`) as it is; of a path its last part."""
    is_path = name.startswith((".", "/", "~")) or name.count("/") > 1
    return Path(name).name if is_path else name
