"""The records of a start in a run directory: `config.resolved.yaml` and `lock.json`.

The resolved configuration loads alone, from any directory, to the same data. No secret is written: keys that hold
one are left out and named in the header. Writes are atomic: a reader sees the old file or the new one.
"""

from __future__ import annotations

import importlib.metadata
import json
import os
import platform
import re
import socket
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import yaml

import platoon
from platoon.config.effective import entry_settings
from platoon.config.files import write_text
from platoon.config.image_pulls import image_pulls
from platoon.config.load import RESOLVED, SOURCE_LINE, Loaded, made_from
from platoon.config.problems import ConfigError, dotted
from platoon.config.run_lock import process_start
from platoon.config.runs import EvalRun, TrainRun
from platoon.config.secrets import mask_argument, split_secrets
from platoon.config.site import Site, name_clash

__all__ = [
    "LOCK",
    "RESOLVED",
    "SUPERVISOR",
    "check_name",
    "dump_resolved",
    "read_lock",
    "start_records",
    "supervisor_pid",
    "to_yaml",
    "update_lock",
    "update_run_lock",
    "write_lock",
    "write_process_record",
    "write_run_record",
]
LOCK = "lock.json"
SUPERVISOR = "PLATOON_SUPERVISOR_PID"  # set for the starts of a supervised run
_VERSIONS = {
    "tinker": "tinker",
    "tinker_cookbook": "tinker-cookbook",
    "openreward": "openreward",
    "hpc_sandbox": "hpc-sandbox",
}


def dump_resolved(loaded: Loaded, path: Path) -> None:
    """Write the merged data of a configuration: paths absolute, nulls kept, secrets left out."""
    data, left_out = split_secrets(_anchored(loaded))
    header = [
        f"# written by platoon {platoon.__version__}",
        *(SOURCE_LINE + _one_line(str(source)) for source in _sources(loaded)),
        *(f"# override: {_one_line(override)}" for override in loaded.overrides),
        *_site_header(loaded.site),
        *(f"# not written: {dotted(key)}" for key in left_out),
    ]
    write_text("\n".join(header) + "\n" + to_yaml(data), path)


def _sources(loaded: Loaded) -> list[Path]:
    """The files a configuration was written in, also when it is itself a resolved one."""
    sources = [origin for source in loaded.sources for origin in made_from(source) or [source]]
    return list(dict.fromkeys(sources))


def _site_header(site: Site) -> list[str]:
    if site.path is None:
        return []
    given = [f"# from the site profile: {key}" for key in site.gave]
    return [f"# site profile: {_one_line(str(site.path))} (SHA-256 {site.sha256})", *given]


def start_records(loaded: Loaded) -> dict[str, Any]:
    """What `lock.json` keeps of a configuration: deprecated keys, site profile, sandbox providers, entry settings."""
    records: dict[str, Any] = {
        "deprecations": [one.record() for one in loaded.deprecations],
        "site": loaded.site.record(),
    }
    if (pulls := image_pulls()) is not None:
        records["image_pulls"] = pulls
    if loaded.site.providers:
        records["sandbox_providers"] = [dict(one) for one in loaded.site.providers]
    settings = entry_settings(loaded.config) if isinstance(loaded.config, TrainRun) else {}
    return {**records, "entry_settings": settings} if settings else records


def check_name(loaded: Loaded, run_dir: Path) -> None:
    """ConfigError when the site profile named the run directory after a file and it belongs to another one's run."""
    clash = name_clash(loaded.site, run_dir, read_lock(run_dir) or {})
    if clash is not None:
        raise ConfigError(clash)


def read_lock(run_dir: Path) -> dict[str, Any] | None:
    """What `lock.json` says, or None when there is none to be read."""
    try:
        lock = json.loads((run_dir / LOCK).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return lock if isinstance(lock, dict) else None


def to_yaml(data: Mapping[str, Any]) -> str:
    """Plain data as block-style YAML, key order and unicode kept."""
    return yaml.dump(
        dict(data), Dumper=_Dumper, sort_keys=False, allow_unicode=True, default_flow_style=False, width=120
    )


class _Dumper(yaml.SafeDumper):
    """Quotes texts whose line breaks and control characters a plain or single-quoted YAML text would lose."""


def _text(dumper: yaml.SafeDumper, value: str) -> yaml.Node:
    return dumper.represent_scalar("tag:yaml.org,2002:str", value, style='"' if _BREAKS.search(value) else None)


_BREAKS = re.compile("[\x00-\x09\x0b-\x1f\x7f-\x9f\u2028\u2029\ufeff]")
_Dumper.add_representer(str, _text)


def _anchored(loaded: Loaded) -> dict[str, Any]:
    data = dict(loaded.data)
    if isinstance(loaded.config, EvalRun):
        output = loaded.config.inference.output_dir
        if output is not None:
            data["inference"] = {**data["inference"], "output_dir": str(Path(os.path.expanduser(output)).absolute())}
    else:
        data["log_path"] = str(Path(os.path.expanduser(loaded.config.log_path)).absolute())
    return data


def _one_line(text: str) -> str:
    return text.encode("unicode_escape").decode("ascii") if not text.isprintable() else text


def write_lock(run_dir: Path, argv: Sequence[str], **records: Any) -> dict[str, Any]:
    """Write `lock.json` of this start: versions, machine, command line, and the records given. Returns its content."""
    sha, dirty = _checkout()
    lock = {
        "versions": {"platoon": platoon.__version__, **{key: _version(name) for key, name in _VERSIONS.items()}},
        "commits": dict(_commits()),
        "platoon_git_sha": sha,
        "platoon_git_dirty": dirty,
        "python": platform.python_version(),
        "hostname": socket.gethostname(),
        "started_at": datetime.now(UTC).isoformat(timespec="seconds"),
        "argv": [mask_argument(item) for item in argv],
        "deprecations": [],
        **records,
    }
    write_text(json.dumps(lock, indent=2, ensure_ascii=False) + "\n", run_dir / LOCK)
    return lock


def write_run_record(loaded: Loaded, run_dir: Path, argv: Sequence[str] = (), **records: Any) -> None:
    """Write `config.resolved.yaml` and `lock.json` of a start. ConfigError, before either, for bad image pulls."""
    records = {**start_records(loaded), **records}
    before = read_lock(run_dir)
    if before is not None and "site" in before and loaded.path == (run_dir / RESOLVED).resolve():
        records["site"] = before["site"]  # what the profile gave is in the resolved file; it gave nothing anew
    dump_resolved(loaded, run_dir / RESOLVED)
    write_lock(run_dir, argv, **records)


def update_lock(run_dir: Path, **records: Any) -> None:
    """Add or replace keys of `lock.json`. Raises ConfigError when there is none to be read."""
    path = run_dir / LOCK
    try:
        lock = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ConfigError(f"{path} cannot be read: {error}") from error
    write_text(json.dumps({**lock, **records}, indent=2, ensure_ascii=False) + "\n", path)


update_run_lock = update_lock


def supervisor_pid() -> int | None:
    """The process that starts this run again when it dies; None when nobody does."""
    text = os.environ.get(SUPERVISOR, "")
    return int(text) if text.isdigit() and int(text) == os.getppid() else None


def write_process_record(run_dir: Path, command: str) -> None:
    """Write `process.json`: which process runs in this directory (its supervisor, when it has one), which process
    trains, and the label its sandboxes carry."""
    start = process_start(os.getpid())
    owner = supervisor_pid() or os.getpid()
    record = {
        "command": command,
        "host": socket.gethostname(),
        "pid": owner,
        "start_time": process_start(owner),
        "label": {"platoon.run": str(run_dir.absolute())},
        "trainer_pid": os.getpid(),
        "trainer_start_time": start,
    }
    write_text(json.dumps(record, indent=2) + "\n", run_dir / "process.json")


def _version(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def _commits() -> Iterator[tuple[str, str]]:
    """The commit of each distribution that was installed from a git repository."""
    for distribution in importlib.metadata.distributions():
        text = distribution.read_text("direct_url.json")
        info = json.loads(text).get("vcs_info") if text else None
        if info and info.get("commit_id"):
            yield distribution.metadata["Name"], info["commit_id"]


def _checkout() -> tuple[str | None, bool | None]:
    """The commit platoon runs from and whether files differ from it; (None, None) when installed."""
    root = Path(platoon.__file__).parent.parent
    if not (root / ".git").exists():
        return None, None
    outputs = []
    for command in (("rev-parse", "HEAD"), ("status", "--porcelain", "--untracked-files=no")):
        try:
            done = subprocess.run(["git", *command], cwd=root, capture_output=True, text=True, timeout=30, check=True)
        except (OSError, subprocess.SubprocessError):
            return None, None
        outputs.append(done.stdout.strip())
    return outputs[0], bool(outputs[1])
