"""Handlers of stop signals: ours, the user's, and those that are put back."""

import os
import signal
import threading
from contextlib import suppress
from types import SimpleNamespace
from unittest import mock

import pytest

from slowfast_patches.utils import signals
from slowfast_patches.utils.interruption import TrainingInterruptedError
from slowfast_patches.utils.signals import (
    STOP_SIGNALS,
    block_signals,
    call_users_handler,
    finished,
    handle_signals,
    interruptible,
    leave_to_parent,
    listening,
    set_handlers,
    stop_if_asked,
    users_handlers,
)

USR1, TERM = signal.SIGUSR1, signal.SIGTERM


@pytest.fixture(autouse=True)
def _as_before():
    before = {number: signal.getsignal(number) for number in STOP_SIGNALS}
    yield
    set_handlers(before)
    finished.clear()


def send(number: int) -> None:
    os.kill(os.getpid(), number)


@pytest.mark.parametrize("number", [TERM, USR1])
def test_a_signal_interrupts_until_the_run_has_finished(number):
    before = signal.getsignal(number)
    finished.set()
    with interruptible():
        with pytest.raises(TrainingInterruptedError, match=f"stopped by {number.name} before the"):
            send(number)
        finished.set()
        send(number)
    assert signal.getsignal(number) == before


def test_the_users_handler_is_called_beside_ours_and_put_back():
    seen = list[int]()

    def of_user(number, frame):
        seen.append(number)

    signal.signal(USR1, of_user)
    signal.signal(TERM, signal.SIG_DFL)
    with users_handlers():
        with interruptible(), pytest.raises(TrainingInterruptedError):
            send(USR1)
        signal.signal(USR1, signal.SIG_IGN)
        call_users_handler(TERM, None)
    assert seen == [USR1]
    assert signal.getsignal(USR1) is of_user
    call_users_handler(USR1, None)
    assert seen == [USR1], "after the run, it is not called by us"


def test_handlers_of_python_and_of_this_package_are_not_the_users():
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(USR1, signals.call_users_handler)
    signal.signal(TERM, signal.SIG_IGN)
    with users_handlers():
        for number in STOP_SIGNALS:
            call_users_handler(number, None)  # would raise KeyboardInterrupt, or never return


def test_handlers_are_put_back_also_after_an_error():
    before = signal.getsignal(USR1)
    seen = list[int]()
    with suppress(OSError), handle_signals({USR1: lambda n, _: seen.append(n)}):
        send(USR1)
        raise OSError("x")
    assert seen == [USR1]
    assert signal.getsignal(USR1) == before


def test_other_threads_leave_handlers_alone():
    before = signal.getsignal(USR1)
    found = list[dict]()
    thread = threading.Thread(target=lambda: found.append(set_handlers({USR1: signal.SIG_IGN})))
    thread.start()
    thread.join(10)
    assert found == [{}]
    assert signal.getsignal(USR1) == before


def test_blocked_signals_arrive_after_the_body():
    seen = list[int]()
    with handle_signals({USR1: lambda n, _: seen.append(n)}):
        with block_signals():
            assert signal.pthread_sigmask(signal.SIG_BLOCK, ()) >= set(STOP_SIGNALS)
            signal.pthread_kill(threading.get_ident(), USR1)  # others may not block it
            assert seen == []
        assert seen == [USR1]
    assert not signal.pthread_sigmask(signal.SIG_BLOCK, ()) & set(STOP_SIGNALS)


def test_long_work_stops_if_a_listener_was_asked(monkeypatch):
    quiet, asked = SimpleNamespace(asked=0), SimpleNamespace(asked=int(TERM))
    monkeypatch.setattr(signals, "listening", [quiet])
    stop_if_asked("while videos are scanned")
    signals.listening.append(asked)
    with pytest.raises(TrainingInterruptedError, match="stopped by SIGTERM while videos are sc"):
        stop_if_asked("while videos are scanned")
    assert listening is not signals.listening


def test_a_worker_ends_only_if_its_parent_sends_the_signal(monkeypatch):
    """SIGTERM from process 1 is ignored, and then that of the parent ends the worker."""
    senders = iter([1, 1, 42, 1])
    ended, waited = threading.Event(), list[set]()

    def wait(numbers):
        waited.append(numbers)
        return SimpleNamespace(si_pid=next(senders))

    monkeypatch.setattr(signals.os, "getppid", lambda: 42)
    monkeypatch.setattr(signals.os, "_exit", lambda status: ended.set() if status == 0 else None)
    monkeypatch.setattr(signals.signal, "sigwaitinfo", wait)
    try:
        leave_to_parent(0)
        assert ended.wait(10)
        assert signal.pthread_sigmask(signal.SIG_BLOCK, ()) >= set(STOP_SIGNALS)
    finally:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, STOP_SIGNALS)
    assert waited == [{TERM}] * 3


def test_a_worker_ends_although_a_thread_waits_for_signals(monkeypatch):
    made = mock.Mock()
    monkeypatch.setattr(signals.threading, "Thread", made)
    try:
        leave_to_parent(0)
    finally:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, STOP_SIGNALS)
    assert made.call_args.kwargs["daemon"] is True
    made.return_value.start.assert_called_once_with()
