"""What every sampling engine must do, whatever it is made of: checks that an engine's test file inherits.

    class TestMyEngine(EngineConformance): ...

beside a fixture `subject`, of scope module, that yields a `Subject`. The model should end its completions soon: the
tiny random one ends one token in five.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
import torch

from schemas.errors import DataError
from stages.engines.batcher import Batcher
from stages.engines.interface import Adapter, ContinuousEngine, Engine, Request, Result, Sampling
from stages.engines.models import BaseModel, eos_ids, load_model, load_tokenizer
from stages.engines.pending import Clock, Pending
from stages.engines.signals import RunEnded
from stages.engines.texts import encode_chat
from stages.programs.run import Finished
from tests.test_stages.engines_kit import chat, full_logprobs, of_tokens, questions, requests_for
from tests.test_stages.programs_kit import job, program_of, run_jobs, session_of

TWENTY = Sampling(max_new_tokens=20)
GREEDY = Sampling(temperature=0, max_new_tokens=12)


@dataclass
class Subject:
    """An engine under test, and what is known of it."""

    engine: Engine
    base: BaseModel
    context: int
    """The engine's limit of prompt plus completion, in tokens."""
    adapters: tuple[Adapter, ...]
    """Two, made for the base, that change its distribution a lot."""
    foreign: Adapter
    """One that was made for another base."""
    mean: float
    """Bound of the mean difference of log-probabilities from a float32 forward pass of transformers."""
    worst: float
    """Bound of the largest."""
    die: Callable[[], None]
    """Let the engine die under what it is working on, once."""
    seeded: bool = True
    """Whether the same request alone has the same completion every time."""
    survives: bool = False
    """Whether calls outlive the engine's death: those under way are asked again, and no run begins anew."""
    _policies: dict[str, Any] = field(default_factory=dict)

    def policy(self, adapter: Adapter | None) -> Any:
        """The transformers model that a request is answered by, in float32."""
        from peft import PeftModel

        name = adapter.digest if adapter else ""
        if name not in self._policies:
            model = load_model(self.base, "float32")
            self._policies[name] = PeftModel.from_pretrained(model, adapter.path).eval() if adapter else model
        return self._policies[name]

    def expected(self, request: Request, result: Result) -> torch.Tensor:
        """(completion tokens,) log-probabilities that the engine should have recorded."""
        scores = full_logprobs(self.policy(request.adapter), request, result)
        if self.engine.logprob_kind == "processed" and request.sampling.temperature > 0:
            scores = processed(scores, request.sampling)
        return of_tokens(scores, result)

    def prompts(self, count: int, seed: int = 0) -> list[tuple[int, ...]]:
        return [self.engine.encode_chat(chat(question)) for question in questions(count, seed)]

    def apart(self, requests: Sequence[Request], results: Sequence[Result]) -> torch.Tensor:
        """Absolute differences of all recorded log-probabilities from those expected."""
        pairs = zip(requests, results, strict=True)
        return torch.cat([(self.expected(*pair) - torch.tensor(pair[1].logprobs)).abs() for pair in pairs])

    def assert_near(self, requests: Sequence[Request], results: Sequence[Result]) -> str:
        apart = self.apart(requests, results)
        told = f"mean {apart.mean():.2e}, worst {apart.max():.2e} over {len(apart)} tokens"
        assert apart.mean() < self.mean, told
        assert apart.max() < self.worst, told
        return told


def processed(logprobs: torch.Tensor, sampling: Sampling) -> torch.Tensor:
    """(tokens, vocabulary) after temperature, top_k and top_p, by sorting: another way than any engine's."""
    kept = []
    for row in logprobs.double() / sampling.temperature:
        order = row.argsort(descending=True)[: sampling.top_k or None]
        weights = row[order].softmax(-1)
        order = order[: int((weights.cumsum(-1) < (sampling.top_p or 1.0)).sum()) + 1]
        cut = torch.full_like(row, -torch.inf)
        cut[order] = row[order].log_softmax(-1)
        kept.append(cut)
    return torch.stack(kept).float()


class EngineConformance:
    def test_a_prompt_and_a_completion_are_the_tokenizers_own(self, subject: Subject):
        tokenizer = load_tokenizer(subject.base)
        assert subject.prompts(1)[0] == encode_chat(tokenizer, chat(questions(1)[0]))
        results = subject.engine.generate(requests_for(subject.prompts(8), 4, TWENTY))
        for result in results:
            assert result.text == tokenizer.decode(result.completion_ids, skip_special_tokens=True)
            assert len(result.logprobs) == len(result.completion_ids)

    def test_logprobs_are_those_of_a_teacher_forced_forward_pass(
        self, subject: Subject, capsys: pytest.CaptureFixture[str]
    ):
        requests = requests_for(subject.prompts(12), 3, TWENTY)
        told = subject.assert_near(requests, subject.engine.generate(requests))
        with capsys.disabled():
            print(f"\n{subject.engine.name} against transformers in float32: {told}")

    @pytest.mark.parametrize(
        ("temperature", "top_p", "top_k"),
        [(0.6, None, None), (1.5, None, None), (1.0, 0.7, None), (1.0, None, 5), (0.8, 0.8, 20)],
    )
    def test_temperature_and_truncation_are_in_what_is_recorded(
        self, subject: Subject, temperature: float, top_p: float | None, top_k: int | None
    ):
        requests = requests_for(subject.prompts(8), 3, Sampling(temperature, top_p, top_k, 12))
        results = subject.engine.generate(requests)
        subject.assert_near(requests, results)
        plain = [replace(request, sampling=TWENTY) for request in requests]
        if subject.engine.logprob_kind == "processed":
            assert subject.apart(plain, results).mean() > 0.05
        if top_k:
            ranks = [_ranks(subject, request, result) for request, result in zip(requests, results, strict=True)]
            assert max(map(max, ranks)) < top_k

    def test_greedy_takes_the_likeliest_tokens_and_records_them_at_temperature_one(self, subject: Subject):
        mixed = requests_for(subject.prompts(5), 1, GREEDY) + requests_for(subject.prompts(5), 1, TWENTY)
        for requests in (mixed[:5], mixed):  # greedy rows alone, and beside sampled ones
            results = subject.engine.generate(requests)
            subject.assert_near(requests, results)
            for request, result in zip(requests[:5], results[:5], strict=True):
                assert max(_ranks(subject, request, result)) == 0

    def test_a_completion_stops_at_eos_or_at_its_length(self, subject: Subject):
        eos = eos_ids(subject.base)
        results = subject.engine.generate(requests_for(subject.prompts(10), 10, Sampling(max_new_tokens=4)))
        assert {result.finish_reason for result in results} == {"stop", "length"}
        for result in results:
            assert (result.completion_ids[-1] in eos) == (result.finish_reason == "stop")
            assert not eos.intersection(result.completion_ids[:-1])
            assert len(result.completion_ids) == 4 or result.finish_reason == "stop"

    def test_a_completion_may_be_empty_text(self, subject: Subject):
        eos = eos_ids(subject.base)
        requests = requests_for(subject.prompts(10), 10, Sampling(max_new_tokens=4))
        results = subject.engine.generate(requests)
        empty = [result for result in results if result.completion_ids[0] in eos]
        assert empty
        assert {(len(result.logprobs), result.text, result.finish_reason) for result in empty} == {(1, "", "stop")}

    def test_each_request_of_a_batch_is_answered_by_its_own_adapter(self, subject: Subject):
        which = [None, *subject.adapters]
        requests = [
            Request(prompt, TWENTY, 10 * place + number, adapter)
            for place, prompt in enumerate(subject.prompts(6))
            for number, adapter in enumerate(which)
        ]
        results = subject.engine.generate(requests)
        subject.assert_near(requests, results)
        for adapter in which[1:]:  # they do change what is sampled from
            own = [pair for pair in zip(requests, results, strict=True) if pair[0].adapter == adapter]
            as_base = [replace(request, adapter=None) for request, _ in own]
            assert subject.apart(as_base, [result for _, result in own]).mean() > 10 * subject.mean

    def test_an_adapter_of_another_base_is_refused_and_the_engine_works_on(self, subject: Subject):
        prompt = subject.prompts(1)[0]
        with pytest.raises(DataError, match="was trained on the base"):
            subject.engine.generate([Request(prompt, TWENTY, 0, subject.foreign)])
        assert subject.engine.generate([Request(prompt, TWENTY, 0)])[0].completion_ids

    def test_seeds_tell_completions_apart_and_repeat_them(self, subject: Subject):
        prompt = subject.prompts(1)[0]
        requests = [Request(prompt, TWENTY, seed) for seed in (3, (1 << 63) - 1, 5, 6, 7, 8)]
        first = [subject.engine.generate([request])[0].completion_ids for request in requests]
        assert len(set(first)) > 3
        if subject.seeded:
            assert [subject.engine.generate([request])[0].completion_ids for request in requests] == first

    def test_a_prompt_over_the_context_is_a_named_result(self, subject: Subject):
        ids = (subject.prompts(1)[0] * subject.context)[: subject.context]
        asked = [Request(prompt, TWENTY, 1) for prompt in (ids, ids[:-1], ids[:10], ids * 2)]
        over, edge, short, far = subject.engine.generate(asked)
        for result in (over, far):
            assert (result.finish_reason, result.completion_ids, result.logprobs) == ("context_overflow", (), ())
        assert len(edge.completion_ids) == 1
        assert short.completion_ids

    def test_a_completion_that_reaches_the_context_ends_there(self, subject: Subject):
        ids = (subject.prompts(1)[0] * subject.context)[: subject.context - 3]
        results = subject.engine.generate([Request(ids, TWENTY, seed) for seed in range(20)])
        lengths = {len(result.completion_ids) for result in results if result.finish_reason == "length"}
        assert lengths == {3}

    def test_usage_counts_every_token_once(self, subject: Subject):
        before = replace(subject.engine.usage)
        requests = requests_for(subject.prompts(6, seed=4), 3, TWENTY)
        results = subject.engine.generate(requests)
        used = subject.engine.usage
        assert used.prompt_tokens - before.prompt_tokens == sum(len(request.prompt_ids) for request in requests)
        assert used.completion_tokens - before.completion_tokens == sum(len(one.completion_ids) for one in results)
        assert 0 < used.prefilled_tokens - before.prefilled_tokens <= used.prompt_tokens - before.prompt_tokens
        assert used.seconds > before.seconds

    @pytest.mark.parametrize("count", [1, 200])
    def test_programs_that_run_at_once_get_their_own_answers(self, subject: Subject, count: int):
        adapter = subject.adapters[0]
        finished = _run(subject, count, lambda *_: None, {"*": adapter})
        assert [run.job.index for run in finished] == list(range(count))
        assert {run.outcome.status for run in finished} == {"ok"}
        for run in finished:
            _assert_whole(subject, run, adapter)
        rows = [row for run in finished[:20] for row in run.invocations]
        subject.assert_near(*zip(*[_of_row(row, adapter) for row in rows], strict=True))

    def test_calls_of_runs_that_are_over_are_not_answered_and_all_others_are(self, subject: Subject):
        ended: set[int] = set()
        long = Sampling(max_new_tokens=60)
        calls = [_pending(question, long, place, ended) for place, question in enumerate(questions(12))]
        batcher = Batcher(subject.engine)
        for call in calls:
            batcher.submit(call)
        ended.update(range(0, 12, 2))
        for _ in range(10_000):
            batcher.step(lambda: True, 0.01)
            if all(call.future.done() for call in calls):
                break
        for call in calls[::2]:
            with pytest.raises(RunEnded):
                call.future.result(0)
        results = [call.future.result(0) for call in calls[1::2]]
        requests = [Request(served.prompt_ids, long, 0) for served in results]
        subject.assert_near(requests, [served.result for served in results])

    def test_a_cancelled_request_is_not_handed_out(self, subject: Subject):
        engine = subject.engine
        if not isinstance(engine, ContinuousEngine):
            pytest.skip("this engine takes batches: what is cancelled is not in them")
        requests = requests_for(subject.prompts(8), 1, Sampling(max_new_tokens=60))
        for ticket, request in enumerate(requests, start=1):
            engine.add(ticket, request)
        for ticket in (1, 3, 3, 99):
            engine.cancel(ticket)
        out: list[Any] = []
        while len(out) < 6:
            out += engine.poll(0.02)
        assert sorted(ticket for ticket, _ in out) == [2, 4, 5, 6, 7, 8]
        assert engine.poll(0.0) == []
        assert len(engine.generate(requests)) == 8

    def test_when_the_engine_dies_its_runs_are_made_once_more_and_none_is_lost_or_doubled(self, subject: Subject):
        answered, lock, killed = Counter[int](), threading.Lock(), threading.Event()

        def note(index: int, call: int) -> None:
            with lock:
                answered[call] += 1
                if answered.total() >= 10 and not killed.is_set():
                    killed.set()
                    subject.die()

        starts = Counter[int]()
        finished = _run(subject, 40, note, {}, starts)
        assert killed.is_set()
        assert [run.job.index for run in finished] == list(range(40))
        assert {run.outcome.status for run in finished} == {"ok"}
        for run in finished:
            _assert_whole(subject, run, None)
        assert max(starts.values()) == (1 if subject.survives else 2)
        rows = [row for run in finished for row in run.invocations]
        subject.assert_near(*zip(*[_of_row(row, None) for row in rows], strict=True))


def _ranks(subject: Subject, request: Request, result: Result) -> list[int]:
    """How many tokens are likelier than each token of a completion."""
    scores = full_logprobs(subject.policy(request.adapter), request, result)
    own = of_tokens(scores, result)
    return [int(above) for above in (scores > own[:, None]).sum(-1)]


def _run(
    subject: Subject,
    count: int,
    note: Callable[[int, int], None],
    adapters: dict[str, Adapter],
    starts: Counter[int] | None = None,
) -> list[Finished]:
    """So many runs at once of a program that makes two calls; `note(run, call)` is told of each answer."""
    texts, counted = questions(count), starts if starts is not None else Counter[int]()

    def program(inputs: dict[str, Any], call: Any) -> str:
        index = int(inputs["x"])
        counted[index] += 1
        first = call("first", chat(texts[index]))
        note(index, 1)
        second = call("second", chat(f"{texts[index]} {first.text}"))
        note(index, 2)
        return str(second.text)

    session = session_of(subject.engine, adapters=adapters, sampling=TWENTY, timeout_s=600.0)
    return run_jobs(program_of(program), [job(index, x=index) for index in range(count)], session, count)


def _assert_whole(subject: Subject, run: Finished, adapter: Adapter | None) -> None:
    tokenizer = load_tokenizer(subject.base) if run.job.index == 0 else None
    assert [row["module"] for row in run.invocations] == ["first", "second"]
    for row in run.invocations:
        assert row["engine"] == subject.engine.name
        assert row["adapter"] == (adapter.digest if adapter else None)
        assert (row["fidelity"], row["logprob_kind"]) == ("exact", subject.engine.logprob_kind)
        assert len(row["completion_ids"]) == len(row["sampling_logprobs"]) > 0
        if tokenizer:
            assert row["completion"] == tokenizer.decode(row["completion_ids"], skip_special_tokens=True)


def _of_row(row: dict[str, Any], adapter: Adapter | None) -> tuple[Request, Result]:
    ids, logprobs = tuple(row["completion_ids"]), tuple(row["sampling_logprobs"])
    request = Request(tuple(row["prompt_ids"]), TWENTY, row["seed"], adapter)
    return request, Result(ids, logprobs, row["finish_reason"], row["completion"])


def _pending(question: str, sampling: Sampling, place: int, ended: set[int]) -> Pending:
    return Pending(chat(question), sampling, place, None, Clock(), lambda: place in ended, lambda served: None)


def wide_tiny(tiny: BaseModel, folder: Path) -> BaseModel:
    """The tiny model with two heads of 32 in the place of four of 16, which some engines have no kernels for."""
    import json
    import shutil

    from stages.engines.models import resolve_base

    shutil.copytree(tiny.path, folder)
    config = json.loads((folder / "config.json").read_text())
    heads = {"num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 32}
    (folder / "config.json").write_text(json.dumps(config | heads))
    return resolve_base(str(folder), folder, folder.parent / "cache")
