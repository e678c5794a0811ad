"""mmGRPO as a DSPy optimizer: `MMGRPO(metric=…, recipe=…).compile(program, trainset=…, valset=…)`.

The same stages run in a run folder as with `mmgrpo run`, and the program comes back bound to the new adapter.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import dspy
from dspy.teleprompt import Teleprompter

from pipeline.jobs import Job
from pipeline.lineage import iterations
from pipeline.live_examples import Columns, columns_of, write_examples
from pipeline.outcome import score_line
from pipeline.progress import Reporter
from pipeline.recipes import LoadedRecipe, read_toml, recipe_from
from pipeline.reporting.live import LiveReport
from pipeline.run import Runner, open_run, run_all
from pipeline.settle import settle
from schemas.canonical import canonical_json
from schemas.errors import RecipeError
from schemas.execution import Execution
from schemas.recipe import Recipe, merge
from stages.engines.adapters import read_adapters
from stages.engines.interface import Sampling
from stages.programs.dspy_engine import is_program_lm
from stages.programs.dspy_program import disguised, load_prompts
from stages.programs.live import FACTORY, METRIC, Live, identity_of, register
from stages.programs.prompts import STATE
from stages.programs.served_lm import Served, policy_lm, served_by

TAKEN = ("program", "examples")
"""Sections that `compile` writes itself."""
SOURCE = "source"
"""Folder of the run that holds what `compile` was given."""
Serve = Callable[[Mapping[str, Path]], Mapping[str, dspy.LM]]


class MMGRPO(Teleprompter):
    """Trains the weights behind a DSPy program. A Teleprompter like any other, for `dspy.BetterTogether` too.

    Args:
        metric: a DSPy metric, (example, prediction, trace=None) to a number or a prediction with `score`.
        recipe: a recipe file, or a recipe as a dictionary, without the sections `program` and `examples`, and with
            `name` and `model` at least.
        run_dir: the run folder; default `runs/NAME`. Compiling the same again goes on where it was, or does nothing.
        execution: execution settings, as of `--exec`.
        held_out: share of the trainset that policies are scored on where `compile` is given no valset.
        serve: given the folders of the adapters by module ("*" for all), returns an LM for each, for example of a
            vLLM server that has loaded them. Default: the engine embedded in this process.

    Raises:
        RecipeError: naming each wrong field of the recipe.
    """

    def __init__(
        self,
        metric: Callable[..., Any],
        recipe: str | Path | Mapping[str, Any],
        *,
        run_dir: str | Path | None = None,
        execution: Mapping[str, Any] | None = None,
        held_out: float = 0.1,
        serve: Serve | None = None,
    ) -> None:
        super().__init__()
        self.metric = metric
        self.held_out = held_out
        self._serve = serve
        self._document, self._root = _read(recipe)
        self.execution = Execution.model_validate(dict(execution or {}))
        self.run_dir = Path(run_dir or Path("runs") / str(self._document.get("name"))).absolute()
        """The run folder, which `mmgrpo report`, `verify` and `lineage` read."""
        self._recipe(Columns((), (), "split"), "unknown")

    def lm(self) -> dspy.LM:
        """The base model, served by this process: what a program runs on before it is trained."""
        loaded = self._settled(self._recipe(Columns((), (), "split"), "unknown"))
        return policy_lm(f"mmgrpo/{loaded.recipe.model.base}", self._served(loaded, None))

    def compile(
        self,
        student: dspy.Module,
        *,
        trainset: list[dspy.Example],
        teacher: dspy.Module | None = None,
        valset: list[dspy.Example] | None = None,
    ) -> dspy.Module:
        """Train, and return the program on the trained policy. The student itself stays as it is.

        Args:
            student: predictors whose LM is not set, or is `self.lm()`, are trained.
            trainset: what rollouts are made of.
            teacher: not taken; the recipe's `teachers` are.
            valset: what every policy is scored on; default: a share of the trainset, which is then not trained on.

        Raises:
            MmgrpoError: when the recipe, the program or an example cannot be used, or a stage fails.
        """
        if teacher is not None:
            raise RecipeError("MMGRPO.compile takes no teacher: name teachers in the recipe, as [teachers.NAME]")
        module = untrained(student)
        source = self.run_dir / SOURCE
        columns = columns_of(trainset, valset or [])
        examples = write_examples(source, trainset, valset, columns, self.held_out)
        identity = identity_of(module, self.metric)
        name = register(Live(module, self.metric, examples), identity)
        (source / "program.json").write_text(canonical_json(identity) + "\n", encoding="utf-8")
        loaded = self._settled(self._recipe(columns, name))
        reporter = Reporter(self.execution.progress)

        def after(job: Job) -> None:
            if job.stage.NAME == "evaluate":
                reporter.note(score_line(self.run_dir, job.slot[1], int(job.slot[2])))

        live = LiveReport(self.run_dir, reporter)
        with open_run(loaded, self.execution, self.run_dir, reporter) as runner, live as report:
            run_all(runner, loaded.recipe.run.iterations, after)
            report.finish()
            return self._bound(student, runner)

    def _recipe(self, columns: Columns, name: str) -> Recipe:
        examples = {
            "path": str(self.run_dir / SOURCE / "examples.jsonl"),
            "inputs": list(columns.inputs),
            "labels": list(columns.labels),
            "split_column": columns.split,
        }
        own = {"program": {"factory": FACTORY, "metric": METRIC, "args": {"name": name}, "metric_args": {"name": name}}}
        return recipe_from(merge(self._document, {**own, "examples": examples}), "MMGRPO(recipe=…)")

    def _settled(self, recipe: Recipe) -> LoadedRecipe:
        return settle(LoadedRecipe(recipe, self._root), self.execution, self.run_dir)[0]

    def _served(self, loaded: LoadedRecipe, adapter: Path | None) -> Served:
        recipe, chosen = loaded.recipe, loaded.recipe.evaluate.sampling
        return Served(
            model=recipe.model,
            root=str(loaded.root),
            adapter=None if adapter is None else str(adapter),
            sampling=Sampling(chosen.temperature, chosen.top_p, chosen.top_k, chosen.max_new_tokens),
            seed=recipe.seed,
            device=self.execution.device,
            cache=self.execution.cache,
        )

    def _bound(self, student: dspy.Module, runner: Runner) -> dspy.Module:
        """A copy of the student on the newest policy, with the prompts that it was trained with."""
        done = iterations(self.run_dir)
        trained = [item.train for item in done if item.train and item.train.manifest.metrics["trained"]]
        folders = read_adapters(trained[-1].path).by_module if trained else {}
        policy = runner.state.policies[-1]
        made = student.deepcopy()
        prompts = [item.prompts for item in done if item.prompts]
        if prompts:
            load_prompts(made, json.loads(prompts[-1].file(STATE).read_bytes()))
        lms = dict(self._serve(folders)) if self._serve and folders else self._lms(runner.loaded, folders, policy)
        for path, predictor in made.named_predictors():
            if not is_program_lm(predictor.lm):
                predictor.lm = lms.get(path) or lms.get("*") or self.lm()
        if getattr(made, "adapter", None) is not None:
            made.__class__ = disguised(type(made), (InAdapter, type(made)))
        made._compiled = True
        return made

    def _lms(self, loaded: LoadedRecipe, folders: Mapping[str, Path], policy: str) -> dict[str, dspy.LM]:
        name = f"mmgrpo/{loaded.recipe.model.base}@{policy[:12]}"
        known = {folder: policy_lm(name, self._served(loaded, folder)) for folder in set(folders.values())}
        return {module: known[folder] for module, folder in folders.items()}


class InAdapter(dspy.Module):
    """A program that runs in the DSPy adapter that it names itself, as it did while it was trained."""

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """The program's output."""
        with dspy.context(adapter=self.adapter):
            return super().__call__(*args, **kwargs)

    async def acall(self, *args: Any, **kwargs: Any) -> Any:
        """The program's output."""
        with dspy.context(adapter=self.adapter):
            return await super().acall(*args, **kwargs)


def untrained(student: dspy.Module) -> dspy.Module:
    """A copy of a program whose predictors have no LM where they are to be trained.

    Raises:
        RecipeError: for a predictor with an LM that mmgrpo neither trains nor records.
    """
    copy = student.deepcopy()
    copy._compiled = False
    for path, predictor in copy.named_predictors():
        served = served_by(predictor.lm)
        if served is not None and served.adapter is not None:
            raise RecipeError(
                f"'{path}' runs on an adapter that mmgrpo trained already ({served.adapter}), and training begins at "
                "the base: raise run.iterations to train longer, or give it the base with set_lm(optimizer.lm())"
            )
        if served is not None:
            predictor.lm = None
        elif predictor.lm is not None and not is_program_lm(predictor.lm):
            raise RecipeError(
                f"'{path}' has an LM of its own ({getattr(predictor.lm, 'model', predictor.lm)}). To train it, set "
                "the base: student.set_lm(optimizer.lm()). To keep another LM there, put it in the recipe as "
                "[lms.NAME] and use stages.programs.dspy_engine.program_lm('NAME')."
            )
    return copy


def _read(recipe: str | Path | Mapping[str, Any]) -> tuple[dict[str, Any], Path]:
    """The recipe's document and the folder that its paths start at."""
    if isinstance(recipe, Mapping):
        document, root = dict(recipe), Path.cwd()
    else:
        document, root = read_toml(Path(recipe)), Path(recipe).resolve().parent
    if taken := [name for name in TAKEN if name in document]:
        raise RecipeError(
            f"MMGRPO(recipe=…): leave out {' and '.join(f'[{name}]' for name in taken)}: the program and the examples "
            "are those that compile() is given"
        )
    return document, root
