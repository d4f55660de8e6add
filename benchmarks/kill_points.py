"""A run killed at each of its durable writes in turn, and started again: is anything lost, repeated or changed?

    python benchmarks/kill_points.py --every 1 --process trainer --work /tmp/kill-points

A preloaded library counts what a process does below the run directory (renames, removals, fsyncs, and writes to JSON
lines, which it cuts in half) and ends the process by SIGKILL at the chosen one. Needs a C compiler. Each point is one
run of two steps with a checkpoint after each, then a resume; weights and moments must equal an undisturbed run's. Exit
code 1 on any miss.
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from platoon.testing.audit import audit_run
from platoon.testing.recompute import statistics_problems
from tests.train.running import finish, run_dir, weights

SETTINGS = ("train.max_training_steps=2", "checkpoint.recovery_every=1", "checkpoint.keep_recovery=2", "eval.every=0")
POSITIONS = 6
PROCESSES = {"trainer": "platoon train", "service": "platoon.service"}
SOURCE = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <limits.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
static atomic_int calls;
static int last;
static char under[PATH_MAX], *list;

__attribute__((constructor)) static void begin(void) {
    char line[4096] = {0};
    FILE *file = fopen("/proc/self/cmdline", "r");
    size_t length = file ? fread(line, 1, sizeof line - 1, file) : 0;
    if (file) fclose(file);
    for (size_t i = 0; i + 1 < length; i++) if (!line[i]) line[i] = ' ';
    if (!getenv("KILL_IN") || !strstr(line, getenv("KILL_IN"))) return;
    last = atoi(getenv("KILL_AT"));
    list = getenv("KILL_LIST");
    snprintf(under, sizeof under, "%s", getenv("KILL_UNDER"));
}
static int due(const char *call, const char *path) {
    size_t size = strlen(path);
    if (!list || strncmp(path, under, strlen(under))) return 0;
    if (*call == 'w' && (size < 6 || strcmp(path + size - 6, ".jsonl"))) return 0; /* other files appear whole */
    int number = atomic_fetch_add(&calls, 1) + 1;
    FILE *file = fopen(list, "a");
    if (file) { fprintf(file, "%s %s\n", call, path + strlen(under)); fclose(file); }
    return number == last;
}
static int due_at(const char *call, int descriptor) {
    char link[64], path[PATH_MAX] = {0};
    snprintf(link, sizeof link, "/proc/self/fd/%d", descriptor);
    return list && readlink(link, path, sizeof path - 1) > 0 && due(call, path);
}
#define REAL(name) static __typeof__(&name) real; if (!real) real = (__typeof__(&name))dlsym(RTLD_NEXT, #name)
int rename(const char *from, const char *to) {
    REAL(rename); if (due("rename", to)) kill(getpid(), SIGKILL); return real(from, to);
}
int unlink(const char *path) {
    REAL(unlink); if (due("unlink", path)) kill(getpid(), SIGKILL); return real(path);
}
int fsync(int descriptor) {
    REAL(fsync); if (due_at("fsync", descriptor)) kill(getpid(), SIGKILL); return real(descriptor);
}
ssize_t write(int descriptor, const void *data, size_t size) {
    REAL(write);
    if (due_at("write", descriptor)) { (void)!real(descriptor, data, size / 2); kill(getpid(), SIGKILL); }
    return real(descriptor, data, size);
}
"""


def killed(path: Path, library: Path, process: str, at: int, settings: tuple[str, ...]) -> tuple[int, list[str]]:
    """One run killed at its write number `at` (0: never): its exit code, and the writes it made."""
    path.mkdir(parents=True)
    env = {"LD_PRELOAD": str(library), "KILL_IN": PROCESSES[process], "KILL_AT": str(at)}
    env |= {"KILL_UNDER": str(run_dir(path)), "KILL_LIST": str(path / "writes")}
    done = finish(path, *settings, env=env)
    return done.returncode, (path / "writes").read_text().splitlines()


def problems_of(path: Path, expected: dict[str, str] | None, settings: tuple[str, ...]) -> list[str]:
    """What the resume of a killed run did wrong. `expected`: its weights; None when they depend on timing."""
    done = finish(path, *settings)
    if done.returncode:
        return [f"exit {done.returncode}: {done.stderr[-500:]}"]
    audit = audit_run(run_dir(path))
    found = [*audit.problems, *statistics_problems(run_dir(path))]
    if audit.counts["consumed"] != POSITIONS:
        found.append(f"fates of the positions: {audit.fates}")
    if expected is not None and weights(run_dir(path)) != expected:
        found.append("the weights differ from the undisturbed run's")
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--first", type=int, default=1, help="the first write to kill at")
    parser.add_argument("--every", type=int, default=5, help="kill at every so many-th write")
    parser.add_argument("--process", choices=sorted(PROCESSES), default="trainer")
    parser.add_argument("--max-staleness", type=int, default=0, help="above 0, weights depend on timing")
    parser.add_argument("--work", type=Path, default=Path("/tmp/platoon-kill-points"))
    options = parser.parse_args()
    if (compiler := shutil.which("cc")) is None:
        print("kill_points needs a C compiler (cc)")
        return 0
    shutil.rmtree(options.work, ignore_errors=True)
    options.work.mkdir(parents=True)
    library = options.work / "kill.so"
    subprocess.run([compiler, "-shared", "-fPIC", "-o", library, "-x", "c", "-"], input=SOURCE, text=True, check=True)
    settings = (*SETTINGS, f"train.max_staleness={options.max_staleness}")
    code, writes = killed(options.work / "undisturbed", library, options.process, 0, settings)
    assert code == 0, "the undisturbed run failed"
    expected = None if options.max_staleness else weights(run_dir(options.work / "undisturbed"))
    missed = 0
    points = range(options.first, len(writes) + 1, options.every)
    for number in points:
        path = options.work / f"at-{number:03d}"
        code, made = killed(path, library, options.process, number, settings)
        found = problems_of(path, expected, settings)
        missed += bool(found)
        what = made[number - 1] if len(made) >= number else "not reached"
        print(f"{number} of {len(writes)}, {what} (exit {code}): {'; '.join(found) or 'exact'}", flush=True)
        if not found:
            shutil.rmtree(path)
    print(f"{len(points)} points, {missed} with problems")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
