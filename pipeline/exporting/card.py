"""The model card: README.md in the form of the Hugging Face hub. It holds no output of a model."""

from __future__ import annotations

import json
from collections.abc import Iterator

from pipeline.cost_forms import money
from pipeline.exporting import usage
from pipeline.exporting.discreet import discreet
from pipeline.exporting.facts import Facts, Score
from pipeline.exporting.limits import limits
from pipeline.exporting.markdown import block, code, escaped, table
from pipeline.exporting.toml import as_toml
from pipeline.reporting.text import bounds, by_status, count, duration, number, plural, signed
from schemas.decisions import Decision
from schemas.policies import SHARED

NAME, RECIPE = "README.md", "recipe.toml"


def card(facts: Facts) -> str:
    """The card of an exported adapter, or of merged weights."""
    sections = [
        _front(facts),
        f"# {escaped(facts.name)}",
        _what(facts),
        _part("Use it", usage.how(facts)),
        _part("Scores", _scores(facts)),
        _part("Drift", table(["figure", "value"], _drift(facts))),
        _part("How it was trained", _training(facts)),
        _part("Data", _data(facts)),
        _part("Cost", _cost(facts)),
        _part("Limits", "\n".join(f"- {line}" for line in limits(facts))),
        _part("Licence", _licence(facts)),
    ]
    return "\n\n".join(section for section in sections if section) + "\n"


def _part(title: str, text: str) -> str:
    return f"## {title}\n\n{text}" if text else ""


def _front(facts: Facts) -> str:
    """The front matter. JSON's strings are YAML's too."""
    name, _, revision = facts.base_name.partition("@")
    lines = ["---", f"base_model: {json.dumps(name)}"]
    lines += [f"base_model_revision: {json.dumps(revision)}"] if revision else []
    lines += ["library_name: transformers" if facts.merged else "library_name: peft"]
    lines += [f"license: {json.dumps(facts.licence)}"] if facts.licence else []
    tags = ["mmgrpo", "grpo", "multi-module", *(["merged"] if facts.merged else ["lora", "peft"])]
    lines += ["pipeline_tag: text-generation", "tags:", *(f"- {tag}" for tag in tags), "---"]
    return "\n".join(lines)


def _what(facts: Facts) -> str:
    what = "Merged weights" if facts.merged else "A LoRA adapter" if len(facts.adapters) == 1 else "LoRA adapters"
    program = facts.recipe["program"]["factory"]
    told = [
        f"{what} for the language model inside the program {code(program)}, trained end to end from the program's "
        f"score by mmgrpo in {plural(facts.iterations, 'iteration')}.",
        f"Base: {code(facts.base_name)}, {code(facts.base['base'])} (digest of its weights, tokenizer and chat "
        "template). On another base it means nothing.",
        f"Policy: {code(facts.policy)}.",
    ]
    rows = [
        [code(name), ", ".join("all modules" if module == SHARED else code(module) for module in modules)]
        for name, modules in facts.adapters.items()
    ]
    return "\n\n".join([*told, table(["adapter", "serves"], rows)])


def _scores(facts: Facts) -> str:
    rows = [_score(score) for score in facts.scores]
    head = ["split", "examples", "base", "this policy", "difference, paired", "failed runs"]
    opened = {0: "has not been opened", 1: "was opened once"}.get(
        facts.tests_opened, f"was opened {facts.tests_opened} times"
    )
    told = ["Means of the program's metric with 95 % bootstrap intervals over examples.", table(head, rows)]
    told += [f"The test split {opened}."] if facts.recipe["examples"].get("test") else ["There is no test split."]
    decided = "\n".join(map(_decided, facts.gate))
    told.append(decided or "No release decision is recorded for this policy.")
    return "\n\n".join(told if rows else ["It was not scored.", *told[2:]])


def _decided(decision: Decision) -> str:
    found = decision.evidence
    evidence = ""
    if found is not None:
        evidence = (
            f" Look {found.k}: difference {signed(found.estimate)}, lower bound {signed(found.lower)} at level "
            f"1 - {found.alpha_k:.2g}, p = {found.p:.2g}, on {plural(found.n, 'example')}."
        )
    forced = ", forced" if decision.forced else ""
    return (
        f"- {decision.kind}{forced}, {escaped(decision.at)}: {decision.verdict}. {escaped(decision.reason)}{evidence}"
    )


def _score(score: Score) -> list[str]:
    own, change = score.policy, score.policy.to_first
    return [
        code(score.split),
        str(own.score.n),
        f"{number(score.base.score.estimate)} {bounds(score.base.score)}" if score.base else "not scored",
        f"{number(own.score.estimate)} {bounds(own.score)}",
        f"{signed(change.estimate)} {bounds(change, sign=True)}" if change and score.base else "not known",
        f"{count(own.failed)} of {count(own.rows)}{f' ({escaped(by_status(own.failures))})' if own.failures else ''}",
    ]


def _drift(facts: Facts) -> Iterator[list[str]]:
    """Figures of the policy, and of its canaries, which are prompts that never change."""
    canaries = {f"canaries, {name}": value for name, value in (facts.drift.get("canaries") or {}).items()}
    for name, value in {**facts.drift, **canaries}.items():
        if isinstance(value, (int, float)) and not isinstance(value, bool):
            yield [escaped(name.replace("_", " ")), count(value) if isinstance(value, int) else number(value)]
    for alarm in facts.drift.get("alarms", ()):
        yield ["alarm", escaped(alarm)]


def _training(facts: Facts) -> str:
    rows = [
        [
            str(index),
            escaped(metrics.get("objective") or "none"),
            count(metrics.get("steps", 0)),
            count(metrics.get("groups", 0)),
            count(metrics.get("members", 0)),
            number(metrics.get("kl_ref"), 4),
            number(metrics.get("ess")),
        ]
        for index, metrics in enumerate(facts.train)
    ]
    head = ["iteration", "objective", "steps", "groups", "members", "KL to the reference", "effective sample share"]
    recipe = block(as_toml(discreet(facts.recipe_set)), "toml")
    told = f"The recipe, as far as it is not mmgrpo's defaults; every field of it: `{RECIPE}`."
    return "\n\n".join([table(head, rows), told, recipe])


def _data(facts: Facts) -> str:
    rows = [["examples", "", count(sum(facts.splits.values())), code(facts.examples)]]
    rows += [["the file they were read from (sha256)", "", "", code(facts.data)]] if facts.data else []
    if facts.snapshot:
        rows.append(["snapshot of traces", "", count(facts.snapshot_figures.get("rollouts")), code(facts.snapshot)])
    rows += [
        [f"rollouts, {escaped(item.source)}", str(item.iteration), count(item.rollouts), code(item.digest)]
        for item in facts.rolled
    ]
    splits = ", ".join(f"{code(name)} {count(size)}" for name, size in sorted(facts.splits.items()))
    table_ = table(["what", "iteration", "rows", "digest"], rows)
    return f"Examples by split: {splits}.\n\n{table_}\n\nEvery artifact behind it: `provenance.json`."


def _cost(facts: Facts) -> str:
    spent = facts.spent
    used = {
        "by the clock": duration(spent.seconds),
        "of processor cores": duration(spent.core_seconds),
        "of GPUs": duration(spent.gpu_seconds) + (f" ({escaped(', '.join(spent.devices))})" if spent.devices else ""),
        "prompt tokens": count(spent.prompt_tokens),
        "completion tokens": count(spent.completion_tokens),
        "tokens trained on": count(spent.trained_tokens),
        f"money, {facts.currency}": money(spent.money),
    }
    return table(["all that led to it, scoring included", ""], [[name, value] for name, value in used.items()])


def _licence(facts: Facts) -> str:
    named = f"its card names {code(facts.licence)}" if facts.licence else "which one that is, is not known here"
    files = ", ".join(code(name) for name in facts.licence_files)
    copied = f" Its terms are copied here: {files}." if files else ""
    return f"The base's licence holds for what is derived from it; {named}.{copied} That of the data is not known here."
