"""The thread that writes while the engine computes."""

from __future__ import annotations

import threading

import pytest

from stages.programs.clerk import Clerk


def test_things_are_done_in_the_order_given_and_all_before_it_is_left() -> None:
    done: list[int] = []
    with Clerk(ahead=3) as clerk:
        for number in range(50):
            clerk.do(done.append, number)
    assert done == list(range(50))


def test_no_more_than_so_many_wait() -> None:
    gate, given = threading.Event(), []

    def give(clerk: Clerk) -> None:
        for number in range(5):
            clerk.do(gate.wait)
            given.append(number)

    with Clerk(ahead=2) as clerk:
        giver = threading.Thread(target=give, args=(clerk,))
        giver.start()
        giver.join(0.2)
        assert given == [0, 1]
        gate.set()
        giver.join()
    assert given == [0, 1, 2, 3, 4]


def test_a_failure_is_raised_at_the_next_thing_given() -> None:
    def fail() -> None:
        raise OSError("No space left on device")

    def give_on() -> None:
        with Clerk(ahead=1) as clerk:
            clerk.do(fail)
            for _ in range(100):
                clerk.do(int)

    with pytest.raises(OSError, match="No space left"):
        give_on()


def test_the_last_failure_is_raised_on_leaving() -> None:
    with pytest.raises(OSError, match="late"), Clerk(ahead=9) as clerk:
        clerk.do(_raise, OSError("late"))


def test_what_was_given_is_done_where_another_error_is_on_its_way() -> None:
    done: list[int] = []

    def interrupted() -> None:
        with Clerk(ahead=9) as clerk:
            clerk.do(done.append, 1)
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert done == [1]


def _raise(error: Exception) -> None:
    raise error
