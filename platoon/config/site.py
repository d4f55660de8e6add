"""The site profile: what a machine or a team says once, below every configuration.

`$PLATOON_SITE`, else `platoon/site.yaml` below `$XDG_CONFIG_HOME` (`~/.config`) when it is there. It lends a training
run its `log_path` and name, and Harbor entries their sandbox provider. `Site.gave` says what it gave to a run.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar, Literal

from pydantic import ValidationError
from pydantic_settings import (
    BaseSettings,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
    YamlConfigSettingsSource,
)

from platoon.config.base import Section, Text
from platoon.config.paths import absolute
from platoon.config.problems import KeyPath, Problem, dotted, placed, show
from platoon.config.reading import read_document
from platoon.config.schema import problems_of

NOT_ISOLATING = ("process",)
_REMOVED_VARIABLES = ("PLATOON_HARBOR_CACHE", "PLATOON_TOOLCHAINS")
_REMOVED = "platoon 0.3.0 removed it: use cache in the site profile"
_PATHS: tuple[KeyPath, ...] = (
    ("cache",),
    ("runs",),
    ("provider_options", "scratch_root"),
    ("provider_options", "image_cache"),
)
_DEFAULT_PROVIDER = "docker"
_VARIABLE = re.compile(r"\$(?:\{([A-Za-z_]\w*)\}|([A-Za-z_]\w*))")


class ProviderOptions(Section):
    """Options of the site's sandbox provider."""

    allow_network_none: bool | None = None
    stage_images: bool | None = None
    rootfs_layout: Text | None = None
    gpu: Text | None = None
    scratch_root: Text | None = None
    image_cache: Text | None = None


class SiteProfile(Section, BaseSettings):
    """`cache`: what is fetched and built once; `runs`: where runs without a path go; `provider`: of sandboxes."""

    model_config = SettingsConfigDict(case_sensitive=True)

    VALUE_HINTS: ClassVar = {
        "provider": {"process": "process does not isolate; a run that wants it names it in its own configuration"}
    }

    cache: Text | None = None
    runs: Text | None = None
    provider: Literal["bubblewrap", "docker", "singularity", "enroot"] | None = None
    provider_options: ProviderOptions = ProviderOptions()

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """Values come from the profile alone; a variable such as `RUNS` or `CACHE` is not one of them."""
        return (init_settings,)


class _ProfileFile(YamlConfigSettingsSource):
    """A profile read as every configuration file is. What is wrong with its text is in `document.problems`, what its
    values lack in `failed`."""

    def __init__(self, path: Path, environ: Mapping[str, str]) -> None:
        self.document = read_document(path)
        self._data, self.failed = _expanded(self.document.data, path, environ)
        super().__init__(SiteProfile, yaml_file=path)

    def _read_file(self, file_path: Any) -> dict[str, Any]:
        return self._data


@dataclass(frozen=True)
class Site:
    """The profile of this machine, and what it gave to a configuration. `path` is None without a profile."""

    looked_for: Path
    path: Path | None = None
    sha256: str | None = None
    profile: SiteProfile = field(default_factory=SiteProfile)
    gave: Mapping[str, Any] = field(default_factory=dict)
    named_after: Path | None = None
    providers: tuple[Mapping[str, Any], ...] = ()

    @property
    def cache_root(self) -> Path:
        """Where what is fetched and built once lies."""
        return Path(self.profile.cache) if self.profile.cache else Path.home() / ".cache" / "platoon"

    @property
    def runs(self) -> Path:
        """Where runs without a path of their own go: the profile's `runs`, else `runs` below the working directory."""
        return Path(self.profile.runs) if self.profile.runs else Path.cwd() / "runs"

    def record(self) -> dict[str, Any]:
        """What `lock.json` keeps under `site`."""
        record: dict[str, Any] = {
            "path": str(self.path) if self.path is not None else None,
            "sha256": self.sha256,
            **self.profile.model_dump(exclude_unset=True),
            "cache_root": str(self.cache_root),
            "cache_root_source": "site" if self.profile.cache else "default",
            "gave": dict(self.gave),
        }
        return {**record, "named_after": str(self.named_after)} if self.named_after is not None else record

    def lines(self) -> list[str]:
        """For people: which profile counts, or where one was looked for, and what it gave to this run."""
        if self.path is None:
            return [f"no site profile at {self.looked_for}; what is fetched goes to {self.cache_root}"]
        values = [f"{key}: {show(value)}" for key, value in self.profile.model_dump(exclude_unset=True).items()]
        given = [f"{key}: {show(value)}" for key, value in self.gave.items()]
        lines = [f"site profile {self.path}: {', '.join(values) or 'empty'}"]
        return [*lines, f"from the site profile: {', '.join(given)}"] if given else lines


def read_site(environ: Mapping[str, str] = os.environ) -> tuple[Site, list[Problem]]:
    """The profile of this machine, read now, and what is wrong with it. Nothing is raised."""
    problems = [
        Problem((), f"the environment variable {name} is set to {environ[name]}; {_REMOVED}")
        for name in _REMOVED_VARIABLES
        if environ.get(name)
    ]
    named = environ.get("PLATOON_SITE")
    home = Path(environ.get("XDG_CONFIG_HOME") or Path.home() / ".config")
    path = absolute(named, Path.cwd()) if named else home / "platoon" / "site.yaml"
    if not os.path.isfile(path):
        if named:
            problems.append(Problem((), f"PLATOON_SITE names {named}, which is not a file"))
        return Site(path), problems
    source = _ProfileFile(path, environ)
    problems += source.document.problems
    if source.document.fatal:
        return Site(path, path), problems
    failed, profile = source.failed, SiteProfile()
    try:
        profile = SiteProfile.model_validate(source())
    except ValidationError as error:
        failed += problems_of(error, SiteProfile)
    if profile.provider is None and profile.provider_options.model_fields_set and not failed:
        failed.append(Problem(("provider_options",), "needs a provider"))
    problems += placed(failed, source.document.places)
    return Site(path, path, hashlib.sha256(path.read_bytes()).hexdigest(), profile), problems


def _expanded(data: Mapping[str, Any], file: Path, environ: Mapping[str, str]) -> tuple[dict[str, Any], list[Problem]]:
    """Variables and `~` written out; relative paths below the profile's directory."""
    problems: list[Problem] = []

    def text(value: str, path: KeyPath) -> str:
        unset = [name for pair in _VARIABLE.findall(value) for name in pair if name and name not in environ]
        problems.extend(Problem(path, f"the environment variable {name} is not set") for name in unset)
        value = _VARIABLE.sub(lambda found: environ.get(found[1] or found[2], found[0]), value)
        if path not in _PATHS or not value.strip():
            return value
        return str(absolute(value, file.parent))

    def walk(value: Any, path: KeyPath) -> Any:
        if isinstance(value, Mapping):
            return {key: walk(item, (*path, key)) for key, item in value.items()}
        return text(value, path) if isinstance(value, str) else value

    return walk(data, ()), problems


def apply_site(
    data: dict[str, Any], site: Site, file: Path, *, training: bool, own_providers: frozenset[int]
) -> tuple[dict[str, Any], Site]:
    """The data with what the profile gives it, and the site that knows what that was. `own_providers`: indices of the
    entries whose provider the configuration itself names, not a named environment."""
    gave: dict[str, Any] = {}
    named_after = None
    if training and data.get("log_path") is None and site.profile.runs:
        gave["log_path"] = site.profile.runs
        stats = data.get("stats") or {}
        data = {**data, "log_path": site.profile.runs}
        if isinstance(stats, dict) and "experiment_name" not in stats:
            gave["stats.experiment_name"] = file.stem
            data["stats"] = {**stats, "experiment_name": file.stem}
            named_after = file
    entries, records = data.get("environments"), []
    if isinstance(entries, list) and any(_is_harbor(entry) for entry in entries):
        data = {**data, "environments": list(entries)}
        for index, entry in enumerate(entries):
            if _is_harbor(entry):
                data["environments"][index], record = _provided(entry, index, site, index in own_providers)
                records.append(record)
                if record["source"] == "site":
                    gave[f"environments.{index}.service_kwargs.provider"] = record["provider"]
    return data, replace(site, gave=gave, named_after=named_after, providers=tuple(records))


def _is_harbor(entry: Any) -> bool:
    return (
        isinstance(entry, dict)
        and entry.get("service") == "harbor"
        and isinstance(entry.get("service_kwargs") or {}, dict)
    )


def _provided(entry: dict[str, Any], index: int, site: Site, own: bool) -> tuple[dict[str, Any], dict[str, Any]]:
    """A Harbor entry with its provider written out, and its line of `sandbox_providers` in lock.json."""
    kwargs: dict[str, Any] = dict(entry.get("service_kwargs") or {})
    written = kwargs.get("provider_options")
    options: dict[str, Any] = dict(written) if isinstance(written, dict) else {}
    sources = dict.fromkeys(options, "config")
    if kwargs.get("provider") is not None:
        provider, source = kwargs["provider"], "config" if own else "environment"
    elif site.profile.provider is not None:
        provider, source = site.profile.provider, "site"
        lent = site.profile.provider_options.model_dump(exclude_unset=True)
        sources = {**dict.fromkeys(lent, "site"), **sources}
        options = {**lent, **options}
    else:
        provider, source = _DEFAULT_PROVIDER, "default"
    kwargs["provider"] = provider
    if options:
        kwargs["provider_options"] = options
    label = entry.get("name") or "default"
    record = {
        "environment": f"environments.{index} ({label})",
        "provider": provider,
        "options": options,
        "source": source,
        "option_sources": sources,
    }
    return {**entry, "service_kwargs": kwargs}, record


def isolation_problems(site: Site) -> list[str]:
    """Entries whose sandboxes would not isolate although the configuration itself does not ask for that."""
    return [
        f"{record['environment']}: the provider {record['provider']} does not isolate and comes from a named "
        "environment; name it in the entry's service_kwargs to run it all the same"
        for record in site.providers
        if record["provider"] in NOT_ISOLATING and record["source"] != "config"
    ]


def name_clash(site: Site, run_dir: Path, lock: Mapping[str, Any]) -> str | None:
    """Why a run directory that the profile named after a file cannot be used: its lock names another file."""
    earlier = (lock.get("site") or {}).get("named_after") if isinstance(lock.get("site"), Mapping) else None
    if site.named_after is None or earlier is None or Path(earlier) == site.named_after:
        return None
    return (
        f"{run_dir} belongs to {earlier}, and the site profile would give it to {site.named_after} too; "
        f"set {dotted(('stats', 'experiment_name'))} (or log_path) in one of them"
    )
