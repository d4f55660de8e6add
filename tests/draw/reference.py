"""The rules of dispatch as a slow model: a flat list of all that was ever drawn, every count taken anew from it.

Written from the rules, not from the code. With the product it shares records, and random streams by equal seeds.
"""

from __future__ import annotations

import hashlib
import random
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from platoon.draw.admission.gate import Ruling
from platoon.draw.dispatcher import DispatchSettings
from platoon.draw.pool import PoolRow
from platoon.draw.records import Ask, Decision, Draw, Drawn, Fated, Key, Record, SlotSkipped, Start, Wait
from platoon.draw.samplers.settings import EntrySampling
from platoon.stats.schema import Fate, GroupRecord

Belief = tuple[float, float]
OWN = "tests.draw.own_samplers:"


@dataclass(frozen=True)
class Rules:
    """What a run is configured to. `admission`: the rule and band of each entry, None when every group trains."""

    run: str
    entries: tuple[EntrySampling, ...]
    bounds: DispatchSettings
    options: dict[str, Any]
    admission: dict[str, tuple[str, tuple[float, float] | None]] | None = None


@dataclass
class Item:
    """A position: a draw, or (without one) the slot of an entry that decides late. `since`: when it settled."""

    position: int
    entry: str | None
    draw: Draw | None = None
    fallback: bool = False
    where: str = "parked"
    ticket: int = 0
    since: int = 0
    released: bool = False
    fills: bool = False
    held: bool = False
    rejected_in: int = -1
    taken_in: int = -1


@dataclass(frozen=True)
class Choice:
    """A `pass_rate` decision, as its metrics see it."""

    share: float
    lifted: bool
    weight: float
    age: int | None


class SlowRun:
    """Each question walks over `items` (what was drawn), `groups` (what was recorded) and `decided` (who drew what)."""

    def __init__(self, rows: Sequence[PoolRow], rules: Rules, steps: int) -> None:
        self.rows, self.rules, self.steps = rows, rules, steps
        self.items: list[Item] = []
        self.groups: list[GroupRecord] = []
        self.held: list[GroupRecord] = []
        self.decided: dict[str, list[str]] = {}
        self.choices: dict[str, list[Choice]] = {}
        self.slots: dict[int, tuple[str, bool]] = {}  # found once, for speed
        self.deaf: dict[str, int] = {}  # groups recorded before a sampler was first there
        self.asked: tuple[Item, int] | None = None
        self.start, self.seq, self.step, self.position, self.version, self.time = 1, 0, 0, 0, 0, 0

    def tick(self) -> int:
        self.time += 1
        return self.time

    # -- counts

    def those(self, *where: str) -> list[Item]:
        return [item for item in self.items if item.where in where]

    def of(self, key: Key) -> Item:
        return next(item for item in self.items if item.draw and item.draw.key == key and item.where != "gone")

    def active(self, label: str | None) -> int:
        return sum(item.draw.label == label and not item.released for item in self.those("running") if item.draw)

    def pipeline(self) -> int:
        held = sum(item.held for item in self.those("marker"))
        return len(self.those("running", "settled")) + held + (self.asked is not None)

    def in_use(self) -> int:
        return self.pipeline() + sum(i.fills and i.taken_in == self.step for i in self.those("taken", "trained"))

    def counted(self) -> int:
        markers = sum(i.taken_in == i.rejected_in == self.step for i in self.those("counted"))
        return markers + sum(i.taken_in == self.step for i in self.those("taken", "trained"))

    def full(self, label: str | None) -> bool:
        limit = self.rules.bounds.limits.get(label) if label is not None else None
        return limit is not None and self.active(label) >= limit

    def labels(self, entry: str | None = None) -> set[str | None]:
        return {row.label for row in self.rows if entry is None or row.entry == entry}

    def sole(self, entry: str | None) -> str | None:
        labels = self.labels(entry)
        return next(iter(labels)) if len(labels) == 1 else None

    def can_start(self, entry: str | None) -> bool:
        return not all(self.full(label) for label in self.labels(entry))

    def capped(self) -> bool:
        bounds = self.rules.bounds
        if bounds.cap is None or (bounds.max_staleness != 0 and self.steps != 1):
            return False
        now = sum(i.rejected_in == self.step and not i.held for i in self.those("marker"))
        return self.counted() + self.pipeline() + now >= bounds.cap

    def room(self, label: str | None = None) -> bool:
        """`label`: of a waiting draw, which may use the places held for it."""
        bounds, ahead = self.rules.bounds, self.rules.bounds.max_staleness
        if self.in_use() >= self.steps * bounds.batch_size or self.capped():
            return False
        if ahead is None:
            return True
        waiting = {item.draw.label if item.draw else self.sole(item.entry) for item in self.those("parked")}
        run = sum(self.active(name) for name in bounds.limits if name in waiting)
        held = min(run, max(0, ahead * bounds.batch_size - run)) if ahead else 0
        if label in bounds.limits:
            held -= min(self.active(label), held)
        return self.in_use() + held < (ahead + 1) * bounds.batch_size

    def reason(self) -> Wait:
        bounds = self.rules.bounds
        if self.in_use() >= self.steps * bounds.batch_size:
            return Wait("plan")
        if self.room():
            return Wait("labels")
        return Wait("plan" if bounds.cap is not None and self.steps == 1 else "horizon")

    # -- decisions

    def adaptive(self, name: str | None) -> bool:
        return name in ("pass_rate", OWN + "Listener", OWN + "Stumbling")

    def choose(self) -> Decision:
        heads: dict[tuple[bool, str | None], Item] = {}
        for item in sorted(self.those("parked"), key=lambda item: item.ticket):
            heads.setdefault((True, item.draw.label) if item.draw else (False, item.entry), item)
        for item in sorted(heads.values(), key=lambda item: item.ticket):
            free = not self.full(item.draw.label) if item.draw else self.can_start(item.entry)
            if free and self.room(item.draw.label if item.draw else self.sole(item.entry)):
                return self.begin(item, [])
        if not self.room():
            return self.reason()
        records: list[Record] = []
        if self.adaptive(self.rules.run):
            if all(self.full(label) for label in self.labels()):
                return self.reason()
            sizes = [self.rules.bounds.size_of(e.label) for e in self.rules.entries if self.can_start(e.label)]
            self.asked = Item(-1, None, where="asked"), max(sizes)
            return Ask(max(sizes))
        while not all(self.full(label) for label in self.labels()):
            item = self.take(records)
            queue = [i for i in self.those("parked") if self.alike(i, item)]
            free = not self.full(item.draw.label) if item.draw else self.can_start(item.entry) and not queue
            if free:
                self.items.append(item)
                return self.begin(item, records)
            if len(queue) < self.rules.bounds.backlog_limit:
                self.items.append(item)
                if not self.room():
                    break
            elif item.draw:
                records.append(Fated(item.draw.key, "skipped", item.draw.label))
            else:
                records.append(SlotSkipped(self.start, item.position, item.entry or "", "backlog"))
        return Wait(self.reason().reason, tuple(records))

    def alike(self, one: Item, other: Item) -> bool:
        if one.draw and other.draw:
            return one.draw.label == other.draw.label
        return not one.draw and not other.draw and one.entry == other.entry

    def begin(self, item: Item, records: list[Record]) -> Start | Ask:
        if item.draw:
            item.where = "running"
            return Start(item.draw, tuple(records))
        item.where = "asked"
        self.asked = item, self.rules.bounds.size_of(item.entry)
        return Ask(self.asked[1], item.entry, tuple(records))

    def decide(self) -> Start:
        assert self.asked is not None
        (item, size), self.asked = self.asked, None
        entry = item.entry
        name = self.rules.run if entry is None else f"{self.sampler_of(entry)}@{entry}"
        row, reason, score = self.ask(name, entry, size)
        if item.fallback:
            name, reason, score = self.rules.run, "fallback", None
        if entry is None:
            item.position, self.position = self.position, self.position + 1
            self.items.append(item)
        item.ticket = item.ticket or self.tick()
        records: list[Record] = []
        item.draw = self.number(item.position, row, (name, reason, score), records)
        item.where = "running"
        return Start(item.draw, tuple(records))

    def withdraw(self) -> None:
        assert self.asked is not None
        self.asked[0].where, self.asked = "parked", None

    def number(
        self,
        position: int,
        row: int,
        said: tuple[str, str, float | None],
        records: list[Record],
        old: Key | None = None,
    ) -> Draw:
        found, size = self.rows[row], self.rules.bounds.size_of(self.rows[row].entry)
        at = (self.start, self.seq, position, found.task_id, row, found.entry, found.label, size)
        draw = Draw(*at, *said, self.version, old)
        self.seq += 1
        records.append(Drawn(draw))
        return draw

    # -- static orders

    def sampler_of(self, entry: str | None) -> str:
        return next(e.task_sampler or "uniform" for e in self.rules.entries if e.label == entry)

    def rows_of(self, entry: str | None) -> list[int]:
        return [i for i, row in enumerate(self.rows) if entry is None or row.entry == entry]

    def key(self, name: str, decision: int) -> int:
        entry = name.partition("@")[2]
        seed = next((e.seed for e in self.rules.entries if e.label == entry), 0)
        if name.startswith("pass_rate"):
            seed += int(self.rules.options.get("seed", 0))
        return int(hashlib.sha256(f"{seed}:{name}:{decision}".encode()).hexdigest()[:32], 16)

    def slot(self, position: int) -> tuple[str, bool]:
        """Whose turn it is, and whether the run's sampler had failed to say."""
        if position not in self.slots:
            self.slots[position] = self.slot_anew(position)
        return self.slots[position]

    def slot_anew(self, position: int) -> tuple[str, bool]:
        entries = self.rules.entries
        if self.rules.run == "weighted":
            weights = [len(self.rows_of(e.label)) if e.weight == "tasks" else e.weight for e in entries]
            credit, cursor, turn = [0.0] * len(entries), 0, 0
            for _ in range(position + 1):
                credit = [c + w / sum(weights) for c, w in zip(credit, weights, strict=True)]
                order = [(cursor + offset) % len(entries) for offset in range(len(entries))]
                turn = next(j for j in order if abs(credit[j] - max(credit)) <= 1e-12)
                credit[turn] -= 1.0
                cursor = (turn + 1) % len(entries)
            return entries[turn].label, False
        if self.rules.run == OWN + "StumblingSlots" and position % 4 == 2:
            weights = [len(self.rows_of(e.label)) if e.weight == "tasks" else e.weight for e in entries]
            left = random.Random(self.key(self.rules.run, position)).random() * sum(weights)
            for entry, weight in zip(entries, weights, strict=True):
                left -= weight
                if left < 0:
                    return entry.label, True
        return entries[position % len(entries)].label, False

    def take(self, records: list[Record]) -> Item:
        position, self.position = self.position, self.position + 1
        run, ticket = self.rules.run, self.tick()
        if run == "uniform":
            turn, offset = divmod(position, len(self.rows))
            row = int(np.random.default_rng(42 + 101 * turn).permutation(len(self.rows))[offset])
            draw = self.number(position, row, (run, "order", None), records)
            return Item(position, draw.entry, draw, ticket=ticket)
        entry, fallback = self.slot(position)
        if self.adaptive(self.sampler_of(entry)):
            return Item(position, entry, fallback=fallback, ticket=ticket)
        before = sum(self.slot(earlier)[0] == entry for earlier in range(position))
        return self.bound(position, entry, before, records, fallback, ticket)

    def bound(
        self, position: int, entry: str, decision: int, records: list[Record], fallback: bool, ticket: int
    ) -> Item:
        """The entry's own shuffled passes."""
        rows = self.rows_of(entry)
        place = next(i for i, e in enumerate(self.rules.entries) if e.label == entry)
        turn, offset = divmod(decision, len(rows))
        shuffled = list(range(len(rows)))
        random.Random(self.rules.entries[place].seed + place * 10007 + turn * 101).shuffle(shuffled)
        said = (self.rules.run, "fallback", None) if fallback else (f"uniform@{entry}", "order", None)
        return Item(
            position, entry, self.number(position, rows[shuffled[offset]], said, records), fallback, ticket=ticket
        )

    # -- adaptive samplers

    def ask(self, name: str, entry: str | None, size: int) -> tuple[int, str, float | None]:
        rows = self.rows_of(entry)
        first = {self.rows[row].task_id: row for row in reversed(rows)}
        ids = list(dict.fromkeys(self.rows[row].task_id for row in rows))
        sizes = {task: self.rules.bounds.size_of(self.rows[first[task]].entry) for task in ids}
        open_ids = [task for task in ids if not self.full(self.rows[first[task]].label)]
        if entry is None:
            open_ids = [task for task in open_ids if sizes[task] <= size]
        decided = self.decided.setdefault(name, [])
        key = self.key(name, len(decided))
        reason, score = "fallback", None
        if name.startswith("pass_rate"):
            task, reason, score = self.pass_rate(name, ids, sizes, open_ids, key)
        elif name.startswith(OWN + "Stumbling") and len(decided) % 3 == 1:
            task = open_ids[key % len(open_ids)]
        else:
            heard = any(group.task_id in ids for group in self.groups[self.deaf.get(name, 0) :])
            reason = "heard" if heard else "new"
            task, score = random.Random(key).choice(open_ids), 0.5
        decided.append(task)
        return first[task], reason, score

    def pass_rate(
        self, name: str, ids: list[str], sizes: dict[str, int], pool: list[str], key: int
    ) -> tuple[str, str, float]:
        options = {"explore": 0.2, "max_draws_per_epoch": 3, "max_outstanding_per_task": None, "candidates": 4096}
        options |= self.rules.options
        decided = self.decided[name]
        window = decided[len(decided) // len(ids) * len(ids) :]
        out = {task: self.outstanding(task) for task in ids}
        least = min(out[task] for task in pool)
        known = {group.task_id for group in self.groups}
        kept = [task for task in pool if not out[task] or task in known]
        pool = kept or [task for task in pool if out[task] == least]
        if (most := options["max_outstanding_per_task"]) is not None:
            least = min(out[task] for task in pool)
            pool = [t for t in pool if out[t] < most] or [t for t in pool if out[t] == least]
        lifted = False
        if (cap := options["max_draws_per_epoch"]) is not None:
            below = [task for task in pool if window.count(task) < cap]
            lifted, pool = not below, below or pool
        rng = np.random.default_rng(key)
        chosen: list[str] = []
        if rng.random() >= float(options["explore"] or 0):
            chosen = [task for task in pool if self.silent(task) < 3]
        reason = "exploit" if chosen else "explore"
        if chosen:
            if len(chosen) > (few := int(options["candidates"] or 0)):
                chosen = [chosen[i] for i in sorted(rng.choice(len(chosen), few, replace=False, shuffle=False))]
            rates = [float(rng.beta(*self.belief(task))) for task in chosen]
            gains = [1 - p ** sizes[t] - (1 - p) ** sizes[t] for p, t in zip(rates, chosen, strict=True)]
            chosen = [task for task, gain in zip(chosen, gains, strict=True) if gain == max(gains)]
        else:
            last = {task: max((i for i, t in enumerate(decided) if t == task), default=-1) for task in pool}
            chosen = [task for task in pool if last[task] == min(last.values())]
        task = chosen[int(rng.integers(len(chosen)))] if len(chosen) > 1 else chosen[0]
        a, b = self.belief(task)
        versions = [self.of_version(group) for group in self.groups if group.task_id == task and group.valid]
        age = max(0, self.version - max(versions)) if versions else None
        self.choices.setdefault(name, []).append(Choice(len(pool) / len(ids), lifted, 2 / (a + b), age))
        fails = passes = 1.0
        for i in range(sizes[task]):
            fails, passes = fails * (b + i) / (a + b + i), passes * (a + i) / (a + b + i)
        return task, reason, 1 - fails - passes

    def metrics(self, name: str, count: int) -> dict[str, float]:
        """Of `pass_rate` over `count` tasks since the last call."""
        decided, choices = self.decided.get(name, []), self.choices.pop(name, [])
        begins = (len(decided) - 1) // count * count if decided else 0
        now, before = decided[begins:], decided[max(0, begins - count) : begins]
        shown = before if before and len(now) < count / 2 else now
        top = sum(number for _, number in Counter(shown).most_common(max(1, count // 10)))
        found = {"top10_share": top / len(shown) if shown else 0.0}
        if choices:
            found["eligible_share"] = sum(c.share for c in choices) / len(choices)
            found["cap_lifted"] = sum(c.lifted for c in choices) / len(choices)
            found["prior_share"] = sum(c.weight for c in choices) / len(choices)
        if ages := [c.age for c in choices if c.age is not None]:
            found["evidence_age"] = sum(ages) / len(ages)
        return found

    # -- statistics

    def outstanding(self, task: str) -> int:
        owed = self.those("parked", "running", "settled", "taken")
        return sum(item.draw is not None and item.draw.task_id == task for item in owed)

    def silent(self, task: str) -> int:
        groups = [group for group in self.groups if group.task_id == task]
        heard = max((i for i, group in enumerate(groups) if group.valid), default=-1)
        return len(groups) - 1 - heard

    def of_version(self, group: GroupRecord) -> int:
        return group.drawn_at["main"]

    def evidence(self, groups: Iterable[GroupRecord]) -> Belief:
        """Passes and fails now, by a half-life of 32 versions."""
        s = f = 0.0
        newest: int | None = None
        for group in groups:
            if not group.valid:
                continue
            version, passes = self.of_version(group), group.passes(1.0)
            newest = version if newest is None else newest
            old = 2.0 ** (-max(0, version - newest) / 32.0)
            new = 2.0 ** (-max(0, newest - version) / 32.0)
            s, f = s * old + passes * new, f * old + (group.valid - passes) * new
            newest = max(newest, version)
        fade = 2.0 ** (-max(0, self.version - (newest or 0)) / 32.0)
        return s * fade, f * fade

    def belief(self, task: str) -> Belief:
        entry = next(row.entry for row in self.rows if row.task_id == task)
        mine = {row.task_id for row in self.rows if row.entry == entry}
        passes, fails = self.evidence(group for group in self.groups if group.task_id in mine)
        rate = (1 + passes) / (2 + passes + fails)
        s, f = self.evidence(group for group in self.groups if group.task_id == task)
        return 2.0 * rate + s, 2.0 * (1.0 - rate) + f

    def flush(self) -> None:
        self.groups += sorted(self.held, key=lambda group: (group.start, group.seq))
        self.held = []

    # -- what happens to groups

    def ruling(self, group: GroupRecord, failed: bool) -> Ruling | None:
        if self.rules.admission is None:
            return None
        name, band = self.rules.admission[group.entry or ""]
        rule = name.partition("@")[0]
        if failed:
            return Ruling(False, "failed", name)
        passes, valid = group.passes(1.0), group.valid
        reason = "admitted"
        if rule == "informative":
            if group.verdict == "uniform":
                reason = "uniform_pass" if valid and passes == valid else "uniform_mixed"
                reason = "uniform_fail" if valid and not passes else reason
            elif group.verdict != "trained":
                reason = group.verdict
            elif band and valid and not band[0] <= passes / valid <= band[1]:
                reason = "below_band" if passes / valid < band[0] else "above_band"
        return Ruling(reason == "admitted", reason, name)

    def ended(self, key: Key, group: GroupRecord, failed: bool, datums: bool) -> tuple[Ruling | None, Record | None]:
        item, ruling = self.of(key), self.ruling(group, failed)
        item.released, item.since = True, self.tick()
        self.held.append(group)
        if ruling is None or ruling.admit:
            item.where = "settled"
            return ruling, None
        item.where, item.rejected_in, item.held = "marker", self.step, failed or not datums
        fate: Fate = "failed" if failed else "rejected"
        label = item.draw.label if item.draw else None
        return ruling, Fated(key, fate, label, ruling.rule, ruling.reason)

    def taken(self, key: Key, fills: bool) -> None:
        item = self.of(key)
        item.where = "counted" if item.where == "marker" else "taken"
        item.taken_in, item.fills = self.step, fills

    def committed(self) -> None:
        for item in self.those("taken"):
            item.where = "trained"

    def step_started(self) -> None:
        self.step, self.steps = self.step + 1, self.steps - 1

    # -- saving and going on

    def state(self) -> dict[str, Any]:
        parked = sorted(self.those("parked"), key=lambda item: item.ticket)
        owed = [i.draw for i in self.those("parked", "running", "settled", "taken") if i.draw]
        slots = sorted(
            (i for i in self.items if i.where in ("parked", "asked") and not i.draw), key=lambda i: i.position
        )
        waiting: dict[str, list[list[int]]] = {}
        for item in parked:
            if item.draw:
                waiting.setdefault(item.draw.label or "", []).append(list(item.draw.key))
        tokens: dict[str, list[int]] = {}
        for item in slots:
            tokens.setdefault(item.entry or "", []).append(item.position)
        return {
            "next_position": self.position,
            "outstanding": sorted([*draw.key, draw.task_id, draw.position] for draw in owed),
            "drawn": sorted([*draw.key, draw.row_index, draw.sampler] for draw in owed),
            "waiting": waiting,
            "tokens": tokens,
            "fallback_slots": sorted(item.position for item in slots if item.fallback),
            "kept": [list(draw.key) for draw in self.kept()],
        }

    def memory(self, name: str) -> tuple[int, dict[str, Any]]:
        """Decisions and state of an adaptive sampler."""
        ids = {self.rows[row].task_id for row in self.rows_of(name.partition("@")[2] or None)}
        decided = self.decided.get(name, [])
        if not name.startswith("pass_rate"):
            heard = [group.task_id for group in self.groups[self.deaf.get(name, 0) :] if group.task_id in ids]
            return len(decided), {"heard": heard}
        begins = max(0, len(decided) - 1) // len(ids) * len(ids)
        return len(decided), {
            "last_drawn": {task: index for index, task in enumerate(decided)},
            "window": begins // len(ids),
            "window_draws": Counter(decided[begins:]),
            "previous_window_draws": Counter(decided[max(0, begins - len(ids)) : begins]),
        }

    def kept(self) -> list[Draw]:
        settled = sorted(self.those("settled", "taken"), key=lambda item: item.since)
        return [item.draw for item in settled if item.draw]

    def restart(self, kept: Sequence[Key], rules: Rules, steps: int) -> list[Record]:
        """A new start from the state, with the kept groups that read back. What is drawn again, oldest first."""
        changed = {e.label for e in rules.entries if self.sampler_of(e.label) != (e.task_sampler or "uniform")}
        for label, name in ((e.label, f"{e.task_sampler}@{e.label}") for e in rules.entries):
            if label in changed:
                self.decided.pop(name, None)
                self.deaf[name] = len(self.groups)
        self.rules, self.steps, self.start, self.seq = rules, steps, self.start + 1, 0
        self.step += 1
        self.asked = None
        self.choices = {}
        owed = [item for item in self.those("running", "settled", "taken", "parked", "asked") if item.position >= 0]
        drawn = sorted((i for i in owed if i.draw), key=lambda item: item.draw.key if item.draw else (0, 0))
        again = [i for i in drawn if i.where != "parked" and i.draw and i.draw.key not in kept]
        again += [item for item in drawn if item.where == "parked"]
        slots = sorted((item for item in owed if not item.draw), key=lambda item: item.position)
        stay = [replace(i, where="settled", fills=False) for i in drawn if i.draw and i.draw.key in kept]
        self.items = stay
        records: list[Record] = []
        for item in again:
            assert item.draw is not None
            row = item.draw.row_index
            draw = self.number(item.position, row, (item.draw.sampler, "reissue", None), records, item.draw.key)
            self.items.append(Item(item.position, draw.entry, draw, ticket=self.tick()))
        for item in slots:
            entry = item.entry or ""
            if self.adaptive(self.sampler_of(entry)):
                self.items.append(Item(item.position, entry, fallback=item.fallback, ticket=self.tick()))
                continue
            slots_before = sum(self.slot(position)[0] == entry for position in range(self.position))
            mine = [other.position for other in slots if other.entry == entry]
            decision = slots_before - len(mine) + mine.index(item.position)
            self.items.append(self.bound(item.position, entry, decision, records, item.fallback, self.tick()))
        return records
