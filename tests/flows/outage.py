"""Steps through an outage of the API, in a process of its own. Talks to the test in lines of JSON.

Inside step 3 it says so and waits until the test has killed the server; later it waits for the server to be back, and
steps on until the outage's runs are set right.
"""

from __future__ import annotations

import asyncio
import contextvars
import json
import sys
import time
from typing import Any

from tasks.endpoint import Endpoint
from tasks.recording import away, leave, phase, recorded, recording, settle

KILL_AT, DOWN_STEPS, AFTER_STEPS = 3, 6, 3


def say(**message: Any) -> None:
    print(json.dumps(message), flush=True)


async def told(word: str) -> None:
    line = await asyncio.to_thread(sys.stdin.readline)
    assert line.strip() == word, line


async def main(url: str) -> int:
    bodies: list[int] = []
    before: list[float] = []  # seconds from the call of a step to its body
    after: list[float] = []  # and from the end of the body to the return
    body: list[float] = []  # when it began and ended

    @recorded("train-step", "step-{step:05d}")
    async def train_step(step: int) -> int:
        body[:] = [time.monotonic()]

        async def update() -> int:
            bodies.append(step)
            if step == KILL_AT:
                say(inside=step)
                await told("killed")
            return step * 10

        value = await phase("update", update)
        body.append(time.monotonic())
        return value

    async def one(step: int) -> None:
        began = time.monotonic()
        assert await train_step(step) == step * 10
        before.append(body[0] - began)
        after.append(time.monotonic() - body[1])

    @recorded("train", "exp/outage", tags=("exp", "outage"))
    async def train(config: str) -> str:
        assert recorder is not None
        watch = asyncio.create_task(recorder.watch(), context=contextvars.Context())
        step = 0
        while step < KILL_AT + DOWN_STEPS:
            step += 1
            await one(step)
        say(down=step)
        await told("back")
        deadline = time.monotonic() + 60
        while recorder.breaker.is_open or recorder.incomplete:
            assert time.monotonic() < deadline, "the recorder never came back"
            await asyncio.sleep(0.1)
            step += 1
            await one(step)
        for _ in range(AFTER_STEPS):
            step += 1
            await one(step)
        watch.cancel()
        await settle()
        return "done"

    with recording(Endpoint(url, {})) as recorder:
        assert recorder is not None
        result = await train("outage.yaml")
        say(result=result, bodies=bodies, before=before, after=after)
        await told("leave")
        if away(recorder):
            leave(7)
    return 0


if __name__ == "__main__":
    sys.exit(asyncio.run(main(sys.argv[1])))
