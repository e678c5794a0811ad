"""Scoring what traces logged with the recipe's metric: what it takes, what decides it, and what is told of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pipeline.ingest_spooling import code_digest
from pipeline.partial import PartialArtifact
from pipeline.progress import Reporter
from pipeline.recipes import LoadedRecipe
from pipeline.texttable import cell
from schemas.canonical import digest
from schemas.execution import Execution
from stages.examples import read_examples
from stages.ingest.kept_scores import KeptScores
from stages.ingest.rescore import NoEngine, Rescorer, identity, labels_digest
from stages.programs.load import Program, identity_of, load_program

if TYPE_CHECKING:
    from stages.engines.models import BaseModel


@dataclass(frozen=True)
class Scoring:
    """The metric of a recipe, and what the recipe's data says of its examples."""

    loaded: LoadedRecipe
    program: Program
    labelled: Mapping[str, Mapping[str, Any]]
    """Rows of the data by the id of their inputs; empty where there is no data."""

    @property
    def identity(self) -> str:
        """What decides scores, labels aside."""
        return identity(identity_of(self.loaded.recipe, self.loaded.root, self.program), self.loaded.recipe)

    @property
    def params(self) -> dict[str, str]:
        """What decides scores, as params of a snapshot."""
        return {"rescored": self.identity, "labels": labels_digest(self.labelled)}

    def rescorer(self, execution: Execution, base: BaseModel, out: PartialArtifact) -> Rescorer:
        """The metric, with the judges that the recipe gives it.

        The base model is loaded only where one of them is it. Scores that a killed process made are taken up.
        """
        from stages.engines.factory import engine_of, make_endpoints
        from stages.engines.interface import Sampling
        from stages.programs.judging import judging_of
        from stages.programs.session import Session

        recipe = self.loaded.recipe
        session = Session(
            engine=engine_of(base, recipe.model, execution) if asks_the_base(self.loaded) else NoEngine(),
            origin={"tokenizer": base.tokenizer, "template": base.template},
            adapters={},
            sampling=Sampling(),
            lms=recipe.lms,
            endpoints=make_endpoints(recipe),
            parse_retries=0,
            timeout_s=recipe.program.timeout_s,
            judging=judging_of(recipe, execution, base.digest, recipe.seed),
        )
        kept = KeptScores(out.scratch / f"scores-{digest([self.identity, code_digest()])[:8]}")
        return Rescorer(
            program=self.program,
            session=session,
            labelled=self.labelled,
            concurrency=execution.concurrency,
            kept=kept,
            progress=lambda done, total: out.progress(done, total, "rollouts scored"),
        )


def scoring_of(loaded: LoadedRecipe) -> Scoring:
    """Load the recipe's program, and its data if there is some.

    Raises:
        RecipeError, DataError: when one of them cannot be used.
    """
    has_data = (loaded.root / loaded.recipe.examples.path).exists()
    rows = read_examples(loaded.recipe, loaded.root) if has_data else []
    program = load_program(loaded.recipe, loaded.root)
    return Scoring(loaded, program, {row["example_id"]: row for row in rows})


def asks_the_base(loaded: LoadedRecipe) -> bool:
    """Whether a judge is the base model."""
    return any(lm.kind == "base" for lm in loaded.recipe.lms.values())


def tell_scoring(rescorer: Rescorer, out: PartialArtifact, reporter: Reporter) -> None:
    """Count what scoring took, and say what the metric failed on."""
    from stages.programs.desk import session_figures

    out.telemetry(**session_figures(rescorer.session))
    if rescorer.failed:
        first = min(rescorer.failed, key=lambda failure: (failure.example_id, failure.index))
        reporter.note(f"the metric failed on {len(rescorer.failed)} rollouts; the first says: {cell(str(first.error))}")
