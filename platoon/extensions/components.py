"""The components that a configuration names, collected while they are looked up: problems, and records for lock.json.

Rooms that know a kind add to one `Components`; the same component named by several entries is one record.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from platoon.config.problems import ConfigError, KeyPath, Problem
from platoon.extensions.provenance import distribution_records, provenance


@dataclass
class _Found:
    kind: str
    ref: str
    resolved: str
    source: str
    level: str | None = None
    environments: list[str] = field(default_factory=list)
    options: dict[str, Any] = field(default_factory=dict)


@dataclass
class Components:
    """What was looked up so far, in the order it was named."""

    problems: list[Problem] = field(default_factory=list)
    _found: dict[tuple[str, str, str | None], _Found] = field(default_factory=dict)

    def add(
        self,
        kind: str,
        ref: str,
        *,
        source: str,
        resolved: str | None = None,
        label: str | None = None,
        level: str | None = None,
        options: Mapping[str, Any] | None = None,
    ) -> None:
        """A component that was found. `source`: its code, `module:qualname`; `label`: the entry that names it;
        `level`: `run` or `entry` for kinds that both may name; `options`: phase -> options, or None."""
        found = self._found.setdefault(
            (kind, ref, level), _Found(kind, ref, resolved if resolved is not None else ref, source, level)
        )
        if label is not None and label not in found.environments:
            found.environments.append(label)
        if options and label is None:
            found.options |= options
        elif options and label is not None:
            found.options[label] = dict(options)

    def refuse(self, path: KeyPath, text: str) -> None:
        """A component that cannot be used."""
        self.problems.append(Problem(path, text))

    def check(self, heading: str = "the components cannot be used") -> None:
        """Raises ConfigError with every problem, if there is one."""
        if self.problems:
            raise ConfigError([str(problem) for problem in self.problems], heading)

    def records(self) -> dict[str, Any]:
        """`components` and `extensions` of lock.json."""
        rows, brought = [], set()
        for found in self._found.values():
            origin = provenance(found.source.partition(":")[0])
            if origin.distribution not in (None, "platoon"):
                brought.add(str(origin.distribution))
            row: dict[str, Any] = {
                "kind": found.kind,
                "ref": found.ref,
                "resolved": found.resolved,
                "source": found.source,
                "distribution": origin.distribution,
                "distribution_version": origin.version,
                "entry_point": origin.entry_point,
                "environments": found.environments,
            }
            row |= {"level": found.level} if found.level is not None else {}
            row |= {"options": found.options} if found.options else {}
            rows.append(row)
        return {"components": rows, "extensions": distribution_records(brought)}


def by_phase(phases: Sequence[str], train: Mapping[str, Any], evaluation: Mapping[str, Any]) -> dict[str, Any]:
    """Options as a record keeps them: evaluation's left out where they are training's."""
    made = {"train": dict(train), "eval": dict(evaluation)}
    kept = {phase: made[phase] for phase in ("train", "eval") if phase in phases and made[phase]}
    return {"train": kept["train"]} if len(kept) == 2 and kept["train"] == kept["eval"] else kept
