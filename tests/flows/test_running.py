"""Signals and loops: a flow run from a command's main thread, a script, a thread and inside a loop."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import threading
from pathlib import Path

import pytest

from flows.running import in_loop, run_to_end
from platoon.train.stop import StopRequest

ROOT = Path(__file__).resolve().parents[2]

SCRIPT = textwrap.dedent(
    """
    import asyncio, sys, threading
    from flows.running import force_exit, run_to_end
    from platoon.train.stop import StopRequest

    stop = StopRequest()

    async def work():
        stop.bind()
        print("ready", flush=True)
        await stop.event.wait()
        print("asked", stop.reason, threading.current_thread() is threading.main_thread(), flush=True)
        if sys.argv[1] == "lingers":
            await asyncio.Event().wait()
        return 0

    sys.exit(run_to_end(work, stop, force_exit))
    """
)


def script(mode: str) -> subprocess.Popen[str]:
    child = subprocess.Popen([sys.executable, "-c", SCRIPT, mode], cwd=ROOT, stdout=subprocess.PIPE, text=True)
    assert heard(child) == "ready"
    return child


def heard(child: subprocess.Popen[str]) -> str:
    assert child.stdout is not None
    return child.stdout.readline().strip()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGUSR2])
def test_one_signal_asks_for_the_stop_and_the_run_ends_well(number: signal.Signals) -> None:
    child = script("leaves")
    child.send_signal(number)
    assert heard(child) == f"asked {number.name} False"
    assert child.wait(20) == 0


@pytest.mark.parametrize("first", [signal.SIGTERM, signal.SIGINT])
def test_a_second_signal_ends_the_process(first: signal.Signals) -> None:
    child = script("lingers")
    child.send_signal(first)
    assert heard(child).startswith("asked")
    child.send_signal(signal.SIGINT)
    assert child.wait(20) == 1


def test_the_supervisors_stop_never_counts_and_its_force_does() -> None:
    child = script("lingers")
    child.send_signal(signal.SIGUSR2)
    assert heard(child) == "asked SIGUSR2 False"
    child.send_signal(signal.SIGUSR2)
    child.send_signal(signal.SIGTERM)
    with pytest.raises(subprocess.TimeoutExpired):
        child.wait(0.5)
    child.send_signal(signal.SIGUSR1)
    assert child.wait(20) == 1


async def answer() -> str:
    return threading.current_thread().name


def test_outside_a_loop_it_returns_the_result_and_restores_the_handlers() -> None:
    before = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1)]
    assert run_to_end(answer, StopRequest()).startswith("platoon-flow")
    assert before == [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1)]


def test_from_another_thread_it_runs_there() -> None:
    names: list[str] = []
    thread = threading.Thread(target=lambda: names.append(run_to_end(answer, StopRequest())), name="callers")
    thread.start()
    thread.join()
    assert names == ["callers"]


def test_exceptions_come_through() -> None:
    async def fails() -> None:
        raise LookupError("the body's")

    with pytest.raises(LookupError, match="the body's"):
        run_to_end(fails, StopRequest())
    with pytest.raises(LookupError, match="the body's"):
        run_to_end(fails)


def test_ctrl_c_cancels_work_without_a_stop_request() -> None:
    cleaned: list[str] = []

    async def work() -> None:
        import asyncio

        try:
            os.kill(os.getpid(), signal.SIGINT)
            await asyncio.Event().wait()
        finally:
            cleaned.append("up")

    with pytest.raises(KeyboardInterrupt):
        run_to_end(work)
    assert cleaned == ["up"]


async def test_it_knows_a_running_loop() -> None:
    assert in_loop()
