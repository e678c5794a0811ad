"""`mmgrpo ingest`: files of traces become a snapshot, addressed by what is in it."""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pipeline.ingest_leftovers import purpose_of, settle_leftovers
from pipeline.ingest_making import make
from pipeline.ingest_reading import Sources, Wanted, read_all, workers_for
from pipeline.ingest_rescoring import Scoring, asks_the_base, scoring_of, tell_scoring
from pipeline.ingest_spooling import spooled_in
from pipeline.ingest_steps import Lying, Making
from pipeline.jobs import key_of
from pipeline.metering import meter_of
from pipeline.on_ray.cluster import Cluster
from pipeline.partial import PartialArtifact
from pipeline.pool import Pools
from pipeline.progress import Reporter
from pipeline.provenance import provenance
from pipeline.recipes import LoadedRecipe
from pipeline.redacting import redactor_of
from pipeline.snapshots import parent_of
from pipeline.store import Store
from pipeline.texttable import cell
from pipeline.tombstones import forgotten_in, refuse_deleted
from schemas.addresses import without_secrets
from schemas.errors import DataError
from schemas.execution import Execution
from schemas.manifest import TELEMETRY
from stages.contract import Artifact
from stages.ingest import snapshot
from stages.ingest.assemble import Assembler, Trace
from stages.ingest.content import Content, content_of
from stages.ingest.limits import Limits, use_limits
from stages.ingest.modules import Place, place_of
from stages.ingest.onto import onto
from stages.ingest.spool import PARTS
from stages.ingest.suggest import as_toml, suggest
from stages.ingest.tokens import Encoder
from stages.ingest.tree import Tree, grow
from stages.programs.load import load_program

if TYPE_CHECKING:
    from stages.engines.models import BaseModel


def ingest(
    loaded: LoadedRecipe,
    execution: Execution,
    wanted: Wanted,
    folder: Path,
    reporter: Reporter,
    *,
    cluster: Cluster | None = None,
) -> tuple[Artifact, bool]:
    """Make the snapshot of what the addresses hold, or find it; says whether it was made.

    Args:
        loaded: the recipe: what the program's inputs are, and how traces are read.
        execution: settings of the machine.
        wanted: which files.
        folder: of snapshots.
        reporter: where progress goes.
        cluster: whose actors share the work; None: processes of this machine.

    Raises:
        RecipeError, DataError: as reading them does; when nothing in them is a rollout of the program.
    """
    started, clock = datetime.now(UTC), time.monotonic()
    meter = meter_of("rescore" if wanted.rescore and asks_the_base(loaded) else snapshot.NAME, execution)
    base = _base(loaded, execution)
    # What can be refused is refused before anything is read.
    scoring = scoring_of(loaded) if wanted.rescore else None
    made_with = _made_with(loaded, base) | ({} if scoring is None else scoring.params)
    parent = None if wanted.onto is None else parent_of(wanted.onto, snapshot.recipe_slice(loaded.recipe), made_with)
    redactor, workers = redactor_of(loaded, execution), cluster or workers_for(wanted, execution)
    if cluster is not None:
        cluster.meter = meter
    with spooled_in(folder, _way(loaded, execution, wanted)) as spooled:
        lying = Lying(spooled, forgotten_in(folder), redacted=redactor is not None, limits=_limits(execution))
        if parent is not None:
            refuse_deleted(parent)  # where it was forgotten until just now
        sources, entries = read_all(wanted, lying, redactor, workers, reporter)
        _tell(sources, reporter)
        only_judged = parent is not None and any(spans == 0 for *_, spans in entries)
        if not sources.spans and not only_judged:
            raise DataError(f"no trace in {without_secrets(', '.join(wanted.addresses))}: {_first(sources)}")
        content = content_of(entries)
        params = {**made_with, "traces": content.digest}
        payload = _payload(loaded, params | ({"parent": parent.digest} if parent else {}))
        key, store = key_of(payload), Store(folder)
        purpose = purpose_of(payload, wanted.addresses)
        if (found := store.find(snapshot.NAME, key)) is not None:
            refuse_deleted(found)
            settle_leftovers(store, None, purpose, reporter)
            return found, False
        given = {name: spans for name, _, spans in entries}
        work = _Work(loaded, execution, base, lying, sources, content, given, scoring, parent, workers)
        reporter.start("making the snapshot")
        try:
            with store.begin(snapshot.NAME, key, reporter, meter) as out:
                settle_leftovers(store, out, purpose, reporter)
                metrics = _filled(out, work, reporter)
                if parent is not None and _nothing_new(parent, params, metrics):
                    out.discard()
                    return parent, False
                artifact = out.finish(
                    stage=snapshot.NAME,
                    version=snapshot.VERSION,
                    key=key,
                    payload=payload,
                    metrics=metrics,
                    provenance=provenance(started, time.monotonic() - clock),
                )
        finally:
            reporter.stop()
        return artifact, True


@dataclass(frozen=True)
class _Work:
    """What the tables of a snapshot are made of."""

    loaded: LoadedRecipe
    execution: Execution
    base: BaseModel
    lying: Lying
    sources: Sources
    content: Content
    given: Mapping[str, int]
    """Spans of the traces, by their ids."""
    scoring: Scoring | None
    parent: Artifact | None
    workers: int | Pools


def _filled(out: PartialArtifact, work: _Work, reporter: Reporter) -> dict[str, Any]:
    """Write the tables, and where they came from; gives the metrics."""
    recipe, scoring = work.loaded.recipe, work.scoring
    older = None if work.parent is None else onto(work.parent.path, work.given, scored=scoring is None)
    making = partial(Making, work.lying, _assembler(work.loaded, work.base), snapshot.secret_of(recipe), older)
    rescorer = None if scoring is None else scoring.rescorer(work.execution, work.base, out)
    parts, dev = work.sources.parts, recipe.ingest.dev
    with _gone_where_refused(out):
        metrics = make(making, work.content, parts, rescorer, out, dev=dev, workers=work.workers, older=older)
    _keep_sources(work.sources, out)
    if rescorer is not None:
        tell_scoring(rescorer, out, reporter)
    return metrics


@contextmanager
def _gone_where_refused(out: PartialArtifact) -> Iterator[None]:
    """What these traces can never become is not left to go on with."""
    try:
        yield
    except DataError:
        out.discard()
        raise


def _limits(execution: Execution) -> Limits:
    """What files may unpack to, also where this process looks into them."""
    found = Limits(execution.unpacked_gib << 30, execution.unpacked_ratio)
    use_limits(found)
    return found


def _way(loaded: LoadedRecipe, execution: Execution, wanted: Wanted) -> Any:
    """How files are read; None where marks stand under a key that no later process has."""
    redact = loaded.recipe.ingest.redact
    key = snapshot.key_id(loaded.recipe)
    if redact.on and key is None:
        return None
    base = loaded.recipe.model.base if redact.on else None  # whose tokenizer tells what logged ids say
    limits = [execution.unpacked_gib, execution.unpacked_ratio]
    return {
        "format": wanted.format,
        "limits": limits,
        "redact": redact.model_dump(mode="json"),
        "key": key,
        "base": base,
    }


def suggest_modules(
    loaded: LoadedRecipe, execution: Execution, wanted: Wanted, folder: Path, reporter: Reporter
) -> str:
    """Rules, as TOML, for the calls that no module is known for."""
    program, redactor = load_program(loaded.recipe, loaded.root), redactor_of(loaded, execution)
    with spooled_in(folder, _way(loaded, execution, wanted)) as spooled:
        lying = Lying(spooled, forgotten_in(folder), redacted=redactor is not None, limits=_limits(execution))
        read_all(wanted, lying, redactor, workers_for(wanted, execution), reporter)
        places = _nameless((trace for place in range(PARTS) for trace in lying.traces(place)), loaded)
        return as_toml(suggest(places, None if program.modules is None else list(program.modules)))


def _nameless(traces: Iterable[Trace], loaded: LoadedRecipe) -> Iterator[Place]:
    from stages.ingest.modules import module_of

    for trace in traces:
        tree = grow(trace.spans)
        if isinstance(tree, Tree):
            for span in tree.calls():
                if span.call is not None and module_of(span, tree, loaded.recipe.ingest)[0] is None:
                    yield place_of(span, tree)


def _base(loaded: LoadedRecipe, execution: Execution) -> BaseModel:
    from stages.engines.models import resolve_base

    return resolve_base(loaded.recipe.model.base, loaded.root, Path(execution.cache) if execution.cache else None)


def _nothing_new(parent: Artifact, params: Mapping[str, Any], metrics: Mapping[str, Any]) -> bool:
    """Whether a child would hold what its parent holds."""
    labels = parent.manifest.payload["params"].get("labels")
    return labels == params.get("labels") and not metrics["onto"].keys() & {"added", "replaced"}


def _assembler(loaded: LoadedRecipe, base: BaseModel) -> Assembler:
    from stages.engines.models import eos_ids, load_tokenizer

    encoder = Encoder(load_tokenizer(base), frozenset(eos_ids(base)))
    digests = {"tokenizer": base.tokenizer, "template": base.template}
    return Assembler(loaded.recipe.examples.inputs, loaded.recipe.ingest, encoder, digests)


def _made_with(loaded: LoadedRecipe, base: BaseModel) -> dict[str, Any]:
    """What a snapshot is made with, beside the recipe: what it has in common with others that come onto it."""
    params: dict[str, Any] = {"base": {"tokenizer": base.tokenizer, "template": base.template}}
    if key_id := snapshot.key_id(loaded.recipe):
        params["key_id"] = key_id
    return params


def _payload(loaded: LoadedRecipe, params: dict[str, Any]) -> dict[str, Any]:
    return {
        "stage": snapshot.NAME,
        "stage_version": snapshot.VERSION,
        "recipe": snapshot.recipe_slice(loaded.recipe),
        "params": params,
        "inputs": {},
    }


def _tell(sources: Sources, reporter: Reporter) -> None:
    """Say what each kind of file was taken for, and what could not be read."""
    for name, count in sorted(Counter(sources.files.values()).items()):
        first = next(file for file, format_name in sources.files.items() if format_name == name)
        more = f" and {count - 1} more" if count > 1 else ""
        reporter.note(f"{name or 'refused'}: {first}{more}")
    for reason, count in sources.counts.items():
        refused = next(item for item in sources.refused if item.reason == reason)
        reporter.note(f"not read, {reason}: {count}, the first {refused.where}: {cell(refused.detail)}")
    if sources.forgotten:
        reporter.note(f"left out, since they were to be forgotten: {sources.forgotten} traces")


def _first(sources: Sources) -> str:
    if not sources.refused:
        return "they hold no span"
    return f"{sources.refused[0].where}: {sources.refused[0].detail}"


def _keep_sources(sources: Sources, out: PartialArtifact) -> None:
    """Where the traces came from, beside the snapshot: which files they were cut into is no part of what it is."""
    refused = [[item.reason, item.where, item.detail] for item in sources.refused]
    draft = out.scratch / "sources.json"
    draft.write_text(json.dumps({"files": sources.files, "refused": refused}, indent=1) + "\n", encoding="utf-8")
    out.commit_shard(f"{TELEMETRY}sources.json", draft)
