"""A server that times out, refuses, dies, and answers what cannot be true."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.chaos.harness import Bench, Tally
from tests.test_stages.server_kit import Dialect, Fault, KitServer, with_choice

A_RUN = 40
"""Faults in one run of the rollout stage."""
QUICK = ("timeout_s=6", "patience_s=120", "retries=60")


def answers(change: Callable[[dict[str, Any]], Any]) -> Fault:
    """The answer, changed."""
    return Fault(change=change)


def logprobs(change: Callable[[list[Any]], Any]) -> Fault:
    """Log-probabilities, changed."""

    def changed(answer: dict[str, Any]) -> None:
        choice = answer["choices"][0]
        choice["logprobs"]["token_logprobs"] = change(choice["logprobs"]["token_logprobs"])

    return answers(changed)


def ids(change: Callable[[list[Any]], Any]) -> Fault:
    """Token ids, changed."""
    return answers(lambda answer: answer["choices"][0].update(token_ids=change(answer["choices"][0]["token_ids"])))


KINDS: dict[str, Callable[[], Fault]] = {
    **{
        f"HTTP {status}": lambda status=status: Fault(status=status)
        for status in (408, 409, 425, 500, 502, 503, 504, 529)
    },  # type: ignore[misc]
    "HTTP 429": lambda: Fault(status=429),
    "HTTP 429 with a pause": lambda: Fault(status=429, headers={"Retry-After": "0.05"}),
    "HTTP 429 with nonsense": lambda: Fault(status=429, headers={"Retry-After": "later, maybe"}),
    "HTTP 429 until yesterday": lambda: Fault(status=429, headers={"Retry-After": "Mon, 01 Jan 2024 00:00:00 GMT"}),
    "no answer in time": lambda: Fault(hang_s=8.0),
    "slow": lambda: Fault(hang_s=0.3),
    "dropped": lambda: Fault(drop=True),
    "JSON cut off": lambda: Fault(body=b'{"choices": [{"index": 0, "text": "ab'),
    "no JSON": lambda: Fault(body=b"<html>Bad gateway</html>"),
    "no text": lambda: Fault(body=b""),
    "no UTF-8": lambda: Fault(body=b"\xff\xfe\x00{"),
    "null": lambda: Fault(body=b"null"),
    "a list": lambda: Fault(body=b"[]"),
    "a number": lambda: Fault(body=b"7"),
    "an error with status 200": lambda: Fault(body=b'{"error": {"message": "overloaded"}}'),
    "no choices": lambda: answers(lambda answer: answer.update(choices=[])),
    "two choices": lambda: answers(lambda answer: answer.update(choices=answer["choices"] * 2)),
    "a choice that is null": lambda: answers(lambda answer: answer.update(choices=[None])),
    "ids beyond the vocabulary": lambda: ids(lambda found: [*found[:-1], 10**6]),
    "negative ids": lambda: ids(lambda found: [-1, *found[1:]]),
    "ids that are text": lambda: ids(lambda found: [str(each) for each in found]),
    "ids that are fractions": lambda: ids(lambda found: [each + 0.5 for each in found]),
    "ids that are true": lambda: ids(lambda found: [True, *found[1:]]),
    "no ids": lambda: ids(lambda found: []),
    "ids that are null": lambda: with_choice(token_ids=None),
    "more ids than asked for": lambda: ids(lambda found: found * 20),
    "another prompt": lambda: with_choice(prompt_token_ids=[1, 2, 3]),
    "another text": lambda: with_choice(text="of another call, surely"),
    "no text beside the ids": lambda: with_choice(text=None),
    "NaN": lambda: logprobs(lambda found: [float("nan"), *found[1:]]),
    "minus infinity": lambda: logprobs(lambda found: [*found[:-1], float("-inf")]),
    "what stands for minus infinity": lambda: logprobs(lambda found: [-9999.0, *found[1:]]),
    "a probability above one": lambda: logprobs(lambda found: [0.5, *found[1:]]),
    "too few log-probabilities": lambda: logprobs(lambda found: found[:-1]),
    "too many log-probabilities": lambda: logprobs(lambda found: [*found, -1.0]),
    "log-probabilities that are null": lambda: logprobs(lambda found: [None] * len(found)),
    "no log-probabilities": lambda: with_choice(logprobs=None),
    "ended by an abort": lambda: with_choice(finish_reason="abort"),
    "ended by nothing": lambda: with_choice(finish_reason=None),
}


class OneByOne(KitServer):
    """Computes a request at a time, so that its numbers do not depend on what else is asked."""

    def _work(self) -> None:
        while (each := self._inbox.get()) is not None:
            request, future = each
            try:
                future.set_result(self.engine.generate([request])[0])
            except Exception as error:  # noqa: BLE001 - for the handler that waits
                future.set_exception(error)


def serving(options: list[str], faults: list[Fault], outages: list[float], *, away: bool = False) -> Callable[[], None]:
    """In a child: a server, what goes wrong with it, and short pauses; `options` is the command line to be changed."""

    def disturb() -> None:
        from stages.engines import circuit, factory, replicas, server_calls
        from stages.engines.models import resolve_base

        circuit.FIRST_PAUSE_S, circuit.LONGEST_PAUSE_S = 0.02, 0.2
        server_calls.FIRST_PAUSE_S, server_calls.LONGEST_PAUSE_S = 0.01, 0.1
        replicas.LIMITED_S = 0.05
        factory._make = own
        server = OneByOne(resolve_base("tiny-random", Path.cwd(), None), Dialect(), "tiny")
        server.faults = list(faults)
        for after in outages:
            threading.Timer(after, server.die_for, [0.3]).start()
        if away:
            server.die()
        for setting in ("engine=server", f"server.urls={server.url}", *(f"server.{each}" for each in QUICK)):
            options.extend(["--exec", setting])
        if away:
            options.extend(["--exec", "server.patience_s=0.2"])

    from stages.engines import factory

    own = factory._make
    return disturb


def served(bench: Bench, faults: int, draw: random.Random) -> Tally:
    """Whatever a server answers, the rows are those of one that never failed; one that is away ends the stage."""
    tally, number = Tally("server"), 0
    quiet = bench.fresh("served-quiet")

    def rollout(run: Path, wrong: list[Fault], outages: list[float] = [], *, away: bool = False) -> Any:  # noqa: B006
        options = [*bench.command("stage", run)]
        options.insert(1, "rollout")
        return bench.wait(bench.start(options, serving(options, wrong, outages, away=away)))

    ended = rollout(quiet, [])
    if ended.code != 0:
        tally.blame(f"without any fault it ended with {ended.code}: {ended.said}")
        return tally
    while tally.injected < faults and not tally.wrong:
        number += 1
        run = bench.fresh(f"served-{number}")
        if number % 3 == 1:
            ended = rollout(run, [], away=True)
            tally.hit("nobody there")
            tally.refused += ended.clear
            tally.recovered += ended.clear
            if ended.code != 4 or not ended.clear:
                tally.blame(f"without a server it ended with {ended.code}: {ended.said}")
        count = min(A_RUN, faults - tally.injected)
        kinds = [draw.choice(list(KINDS)) if draw.random() < 0.8 else None for _ in range(count)]
        wrong = [KINDS[kind]() if kind else Fault() for kind in kinds]
        outages = [draw.uniform(0.2, 2.0)] if draw.random() < 0.5 and tally.injected + len(kinds) < faults else []
        ended = rollout(run, wrong, outages)
        for kind in filter(None, kinds):
            tally.hit(kind)
        if outages:
            tally.hit("server restarted")
        equal(bench, tally, run, quiet, ended, len(list(filter(None, kinds))) + len(outages))
    return tally


def equal(bench: Bench, tally: Tally, run: Path, quiet: Path, ended: Any, faults: int) -> None:
    """The stage ended well, with the very rows of the quiet one."""
    from tests.chaos.soak_ends import counted, digests

    if ended.code != 0:
        tally.blame(f"{run.name} ended with {ended.code}: {ended.said}")
        return
    rows = bench.ask(lambda: counted(run))
    tally.lost_rows += rows["lost_rows"]
    tally.doubled_rows += rows["doubled_rows"]
    if digests(run) != digests(quiet):
        tally.blame(f"{run.name}: other rows than without faults: {digests(run)} {digests(quiet)}")
    else:
        tally.recovered += faults


FAMILIES = {"server": served}
