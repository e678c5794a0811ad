"""How to load what was exported: commands to copy."""

from __future__ import annotations

import json
import shlex

from pipeline.exporting.facts import Facts
from pipeline.exporting.markdown import block, code

PLACE, BASE = "FOLDER", "BASE"
_NO_DORA = "vLLM does not serve adapters with DoRA: export merged weights for it."


def how(facts: Facts) -> str:
    """Loading with PEFT (or transformers) and serving with vLLM."""
    if facts.merged:
        return "\n\n".join([block(_MERGED, "python"), block(f"vllm serve {PLACE}", "sh"), _NAMED])
    folders = {name: PLACE if _shared(facts) else f"{PLACE}/{name}" for name in facts.adapters}
    base, revision = place_of(facts.base_name)
    pinned = f", revision={json.dumps(revision)}" if revision else ""
    loaded = f"{json.dumps(base)}{pinned}"
    told = [block(_PEFT.format(base=loaded, folder=json.dumps(next(iter(folders.values())))), "python")]
    told.append(_NO_DORA if facts.recipe["adapter"].get("use_dora") else block(_served(facts, folders), "sh"))
    told.append(_NAMED if base != BASE else f"{_NAMED} `{BASE}` is that of its base, {code(facts.base_name)}.")
    if not _shared(facts):
        told.append("`modules.json` says which adapter serves which module: each call asks for its own by name.")
    return "\n\n".join(told)


def place_of(base: str) -> tuple[str, str | None]:
    """What a base is loaded by: the name on the hub and the revision; a placeholder for what is not on the hub."""
    name, _, revision = base.partition("@")
    return (name, revision or None) if "/" in name else (BASE, None)


def _served(facts: Facts, folders: dict[str, str]) -> str:
    base, revision = place_of(facts.base_name)
    modules = " ".join(shlex.quote(f"{name}={folder}") for name, folder in folders.items())
    pinned = f" --revision {shlex.quote(revision)}" if revision else ""
    rank = f"--max-lora-rank {_rank(facts)}"
    return f"vllm serve {shlex.quote(base)}{pinned} --enable-lora {rank} --lora-modules {modules}"


def _shared(facts: Facts) -> bool:
    return list(facts.adapters.values()) == [("*",)]


def _rank(facts: Facts) -> int:
    """What vLLM is to make room for: one of the ranks it knows."""
    section = facts.recipe["adapter"]
    most = max([section["r"], *section.get("rank_pattern", {}).values()])
    return next(rank for rank in (8, 16, 32, 64, 128, 256, 320, 512) if rank >= most or rank == 512)


_NAMED = f"`{PLACE}` is this folder. The prompts are the program's: load it as it was trained."
_PEFT = """from peft import PeftModel
from transformers import AutoModelForCausalLM

model = AutoModelForCausalLM.from_pretrained({base})
model = PeftModel.from_pretrained(model, {folder})
"""
_MERGED = f"""from transformers import AutoModelForCausalLM, AutoTokenizer

model = AutoModelForCausalLM.from_pretrained("{PLACE}")
tokenizer = AutoTokenizer.from_pretrained("{PLACE}")
"""
