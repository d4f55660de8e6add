"""Screenshots of Prefect's UI with a training run, by headless Chromium (`apt-get install chromium`).

    platoon server start && platoon train examples/first-run/train.yaml --orchestration require
    python scripts/screenshots.py --run first-run/errand --out docs/images

Takes the newest flow run of that name at the API that PREFECT_API_URL or `platoon server` names. Chromium is driven
over its debugging protocol through a pipe, so that a page is taken once its text is there, not after a guess.
"""

from __future__ import annotations

import argparse
import base64
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from tasks.endpoint import choose_api

SECONDS = 60.0
WIDTH, HEIGHT = 1280, 800
DRAWN_BYTES = 15_000


class Browser:
    """A headless Chromium with one page."""

    def __init__(self, profile: Path) -> None:
        program = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
        if program is None:
            raise SystemExit("no chromium on PATH: apt-get install chromium")
        to_browser, from_here = os.pipe()
        to_here, from_browser = os.pipe()
        # Chromium reads commands from descriptor 3 and answers on 4
        script = f'exec "$0" "$@" 3<&{to_browser} 4>&{from_browser}'
        arguments = [
            program, "--headless=new", "--no-sandbox", "--hide-scrollbars", "--disable-dev-shm-usage",
            "--use-angle=swiftshader", "--enable-unsafe-swiftshader",  # the graph of a run is drawn by WebGL
            "--remote-debugging-pipe", f"--user-data-dir={profile}", f"--window-size={WIDTH},{HEIGHT}", "about:blank",
        ]  # fmt: skip
        self._process = subprocess.Popen(
            ["/bin/bash", "-c", script, *arguments], pass_fds=(to_browser, from_browser), stderr=subprocess.DEVNULL
        )
        os.close(to_browser)
        os.close(from_browser)
        self._out = os.fdopen(from_here, "wb", buffering=0)
        self._in = os.fdopen(to_here, "rb", buffering=0)
        self._rest = b""
        self._number = 0
        target = self.call("Target.createTarget", {"url": "about:blank"})["targetId"]
        self._session = self.call("Target.attachToTarget", {"targetId": target, "flatten": True})["sessionId"]
        self.page("Page.enable")

    def call(self, method: str, parameters: dict[str, Any] | None = None, session: str | None = None) -> dict[str, Any]:
        """A command and its answer; events that come between are passed over."""
        self._number += 1
        message: dict[str, Any] = {"id": self._number, "method": method, "params": parameters or {}}
        if session:
            message["sessionId"] = session
        self._out.write(json.dumps(message).encode() + b"\0")
        while True:
            answer = self._read()
            if answer.get("id") == self._number:
                if "error" in answer:
                    raise RuntimeError(f"{method}: {answer['error']}")
                found: dict[str, Any] = answer["result"]
                return found

    def page(self, method: str, **parameters: Any) -> dict[str, Any]:
        return self.call(method, parameters, self._session)

    def _read(self) -> dict[str, Any]:
        while b"\0" not in self._rest:
            chunk = self._in.read(1 << 16)
            if not chunk:
                raise RuntimeError("Chromium ended")
            self._rest += chunk
        line, _, self._rest = self._rest.partition(b"\0")
        found: dict[str, Any] = json.loads(line)
        return found

    def open(self, url: str, ready: str) -> None:
        """Go to a page and wait until the script `ready` says true."""
        self.page("Page.navigate", url=url)
        self.until(ready)

    def until(self, ready: str) -> None:
        deadline = time.monotonic() + SECONDS
        while not self.run(ready):
            if time.monotonic() > deadline:
                raise SystemExit(f"the page did not get there: {ready}\n{self.run('document.body.innerText')}")
            time.sleep(0.1)

    def run(self, script: str) -> Any:
        answer = self.page("Runtime.evaluate", expression=script, returnByValue=True)
        return answer["result"].get("value")

    def resize(self, height: int) -> None:
        self.page("Emulation.setDeviceMetricsOverride", width=WIDTH, height=height, deviceScaleFactor=1, mobile=False)

    def picture(self, path: Path, height: int = HEIGHT) -> None:
        self.resize(height)
        self.until("new Promise(done => requestAnimationFrame(() => requestAnimationFrame(() => done(true)))) && true")
        data = self.page("Page.captureScreenshot", format="png")["data"]
        path.write_bytes(base64.b64decode(data))
        print(f"{path} ({path.stat().st_size // 1024} KiB)")

    def until_drawn(self, selector: str) -> None:
        """Wait until a canvas shows something: a picture of an empty one is a few hundred bytes."""
        find = f"const box = document.querySelector('{selector}').getBoundingClientRect();"
        script = f"(() => {{ {find} return [box.x, box.y, box.width, box.height] }})()"
        deadline = time.monotonic() + SECONDS
        while True:
            x, y, width, height = self.run(script)
            clip = {"x": x, "y": y, "width": width, "height": height, "scale": 1}
            if len(self.page("Page.captureScreenshot", format="png", clip=clip)["data"]) > DRAWN_BYTES:
                return
            if time.monotonic() > deadline:
                raise SystemExit(f"{selector} stays empty")
            time.sleep(0.2)

    def close(self) -> None:
        self._process.terminate()
        self._process.wait(20)


@contextmanager
def browser() -> Iterator[Browser]:
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        opened = Browser(Path(profile))
        try:
            yield opened
        finally:
            opened.close()


def ask(api: str, path: str, body: dict[str, Any]) -> Any:
    reply = httpx.post(f"{api}/{path}", json=body, timeout=30)
    reply.raise_for_status()
    return reply.json()


def text(*words: str) -> str:
    return " && ".join(f"document.body.innerText.includes({json.dumps(word)})" for word in words)


def take(api: str, run_name: str, out: Path) -> None:
    ui = api.removesuffix("/api") + "/v2"
    filters = {"flow_runs": {"name": {"any_": [run_name]}}, "sort": "START_TIME_DESC", "limit": 1}
    runs = ask(api, "flow_runs/filter", filters)
    if not runs:
        raise SystemExit(f"no flow run {run_name!r} at {api}")
    run = runs[0]
    chosen = {"artifacts": {"flow_run_id": {"any_": [run["id"]]}}}
    artifacts = {one["key"].rpartition("-")[2]: one for one in ask(api, "artifacts/filter", chosen)}
    out.mkdir(parents=True, exist_ok=True)
    with browser() as page:
        page.resize(1100)
        page.open(f"{ui}/runs/flow-run/{run['id']}", text(run_name, "sampling:"))
        page.until("document.querySelectorAll('canvas').length > 0")
        page.until_drawn("canvas")
        page.picture(out / "flow-run.png", 1100)
        page.open(f"{ui}/artifacts/artifact/{artifacts['report']['id']}", text("Tasks by label"))
        page.until("[...document.images].some(i => i.src.startsWith('data:image/svg') && i.complete && i.naturalWidth)")
        page.picture(out / "report.png", 900)
        page.open(f"{ui}/artifacts/artifact/{artifacts['steps']['id']}", text("pass@1", "tokens"))
        page.picture(out / "steps.png")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--run", default="first-run/errand", help="name of the flow run: experiment/trial")
    parser.add_argument("--out", type=Path, default=Path("docs/images"))
    asked = parser.parse_args()
    endpoint = choose_api("require")
    assert endpoint is not None
    take(endpoint.url, asked.run, asked.out)


if __name__ == "__main__":
    main()
