"""A circuit opens after failures in a row, for growing pauses, and one request at a time tries it."""

from __future__ import annotations

from stages.engines.circuit import FAILURES, LONGEST_PAUSE_S, Circuit


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


def opened() -> tuple[Circuit, Clock]:
    clock = Clock()
    circuit = Circuit(clock)
    for _ in range(FAILURES):
        assert circuit.ready
        circuit.failed("dropped", trial=circuit.begin())
    return circuit, clock


def test_it_opens_after_failures_in_a_row_and_a_success_between_them_counts_anew():
    circuit = Circuit(Clock())
    for number in range(3 * FAILURES):
        circuit.failed("dropped", trial=circuit.begin())
        if number % (FAILURES - 1) == 0:
            circuit.succeeded()
    assert circuit.ready
    assert not opened()[0].ready


def test_one_request_tries_it_after_a_pause():
    circuit, clock = opened()
    clock.now = circuit.until
    assert circuit.ready
    assert circuit.begin()
    assert not circuit.ready
    circuit.dropped(trial=True)  # cancelled: another may try
    assert circuit.ready
    assert circuit.begin()
    circuit.succeeded()
    assert circuit.ready
    assert not circuit.begin()


def test_pauses_grow_to_a_limit_and_late_failures_do_not_lengthen_them():
    circuit, clock = opened()
    pauses = []
    for _ in range(12):
        until = circuit.until
        circuit.failed("dropped", trial=False)  # was under way when it opened
        assert circuit.until == until
        pauses.append(until - clock.now)
        clock.now = until
        circuit.failed("dropped", trial=circuit.begin())
    assert pauses[-1] <= LONGEST_PAUSE_S
    assert pauses[6] > 4 * pauses[1]


def test_it_says_how_long_it_will_have_been_out_when_it_is_asked_again():
    circuit, clock = opened()
    assert circuit.out_s == circuit.until - clock.now
    clock.now += 1000
    assert circuit.out_s == 1000
    circuit.succeeded()
    assert circuit.out_s == 0


def test_a_rate_limit_is_a_pause_and_no_failure():
    clock = Clock()
    circuit = Circuit(clock)
    for _ in range(FAILURES + 1):
        circuit.limited("HTTP 429", 30.0, trial=circuit.begin())
    assert not circuit.ready
    assert circuit.out_s == 30
    clock.now += 30
    assert circuit.ready
    assert not circuit.begin()
