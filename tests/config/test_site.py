from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from platoon.config import ConfigError, load, run_directory, write_run_record
from platoon.config.records import RESOLVED, check_name, dump_resolved, start_records, write_lock
from platoon.config.site import SiteProfile, isolation_problems, read_site

from .conftest import MINIMAL, Write


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Write a site profile and make it this machine's."""

    def make(content: object) -> Path:
        path = tmp_path / "site" / "site.yaml"
        path.parent.mkdir(exist_ok=True)
        path.write_text(content if isinstance(content, str) else yaml.safe_dump(content), encoding="utf-8")
        monkeypatch.setenv("PLATOON_SITE", str(path))
        return path

    return make


def test_without_a_profile_runs_lie_below_the_working_directory(write: Write, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PLATOON_SITE", raising=False)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(write("", "x").parent / "none"))
    loaded = load(write(MINIMAL))
    assert run_directory(loaded.train_config) == Path.cwd() / "runs" / "platoon_tinker" / "run"
    assert loaded.site.gave == {}
    (line,) = loaded.site.lines()
    assert line == f"no site profile at {loaded.site.looked_for}; what is fetched goes to {loaded.site.cache_root}"
    assert loaded.site.cache_root == Path.home() / ".cache" / "platoon"


def test_the_profile_lies_in_the_users_configuration(write: Write, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write({"runs": "all"}, "home/platoon/site.yaml")
    monkeypatch.setenv("PLATOON_SITE", "")
    monkeypatch.setenv("XDG_CONFIG_HOME", str(path.parents[1]))
    found = load(write(MINIMAL)).site
    assert (found.path, found.runs) == (path, path.parent / "all")


def test_the_profile_lends_where_runs_go_and_their_name(write: Write, site: Any, tmp_path: Path) -> None:
    site({"runs": "../all-runs", "cache": "~/c"})
    loaded = load(write(MINIMAL, "reach.yaml"))
    assert run_directory(loaded.train_config) == tmp_path / "all-runs" / "reach" / "run"
    assert loaded.site.gave == {"log_path": str(tmp_path / "all-runs"), "stats.experiment_name": "reach"}
    assert loaded.site.cache_root == Path.home() / "c"
    assert "from the site profile: log_path" in loaded.site.lines()[1]
    record = start_records(loaded)["site"]
    assert record["named_after"] == str(tmp_path / "reach.yaml")
    assert record["cache_root_source"] == "site"
    assert json.loads(json.dumps(record)) == record


def test_what_the_run_says_itself_stands(write: Write, site: Any) -> None:
    site({"runs": "/r"})
    named = load(write({**MINIMAL, "stats": {"experiment_name": "e"}}))
    assert run_directory(named.train_config) == Path("/r/e/run")
    assert named.site.named_after is None
    placed = load(write({**MINIMAL, "log_path": "/mine"}))
    assert run_directory(placed.train_config) == Path("/mine/platoon_tinker/run")
    assert placed.site.gave == {}
    assert run_directory(load(write(MINIMAL), ["log_path=/over"]).train_config).parts[1] == "over"


def test_the_resolved_file_keeps_what_was_given(write: Write, site: Any, tmp_path: Path) -> None:
    path = site({"runs": "all"})
    loaded = load(write(MINIMAL))
    dump_resolved(loaded, tmp_path / "out" / RESOLVED)
    path.unlink()
    site({})
    again = load(tmp_path / "out" / RESOLVED)
    assert run_directory(again.train_config) == run_directory(loaded.train_config)
    assert "# from the site profile: log_path" in (tmp_path / "out" / RESOLVED).read_text(encoding="utf-8")


def test_two_files_of_one_name_do_not_share_a_run(write: Write, site: Any, tmp_path: Path) -> None:
    site({"runs": "all"})
    first, second = load(write(MINIMAL, "a/reach.yaml")), load(write(MINIMAL, "b/reach.yaml"))
    run_dir = run_directory(first.train_config)
    assert run_directory(second.train_config) == run_dir
    check_name(first, run_dir)
    run_dir.mkdir(parents=True)
    write_lock(run_dir, ["train"], **start_records(first))
    check_name(first, run_dir)
    with pytest.raises(ConfigError, match=r"belongs to .*a/reach.yaml"):
        check_name(second, run_dir)
    check_name(load(write({**MINIMAL, "stats": {"experiment_name": "reach"}}, "c/x.yaml")), run_dir)


def test_a_start_from_the_resolved_file_keeps_what_the_profile_gave(write: Write, site: Any) -> None:
    site({"runs": "all"})
    first = load(write(MINIMAL, "a/reach.yaml"))
    run_dir = run_directory(first.train_config)
    write_run_record(first, run_dir)
    again = load(run_dir / RESOLVED)
    assert again.site.gave == {}
    write_run_record(again, run_dir)
    record = json.loads((run_dir / "lock.json").read_text(encoding="utf-8"))["site"]
    assert record["named_after"].endswith("a/reach.yaml")
    with pytest.raises(ConfigError, match="belongs to"):
        check_name(load(write(MINIMAL, "b/reach.yaml")), run_dir)


@pytest.mark.parametrize(
    ("content", "text"),
    [
        ({"cach": "x"}, "did you mean cache"),
        ({"Cache": "x"}, "Cache: unknown key; did you mean cache"),
        ({"provider": "process"}, "process does not isolate"),
        ({"provider": "podman"}, "must be one of bubblewrap, docker"),
        ({"provider_options": {"gpu": "a"}}, "needs a provider"),
        ({"provider": "docker", "provider_options": {"gpus": "a"}}, "did you mean provider_options.gpu"),
        ({"runs": "$NO_SUCH_VARIABLE_HERE/x"}, "NO_SUCH_VARIABLE_HERE is not set"),
        ({"runs": 3}, "must be text"),
        ("- a\n", "must hold a mapping"),
        ("a: [", "is not YAML"),
        ("runs: a\nruns: b\n", "is already set in line 1"),
    ],
)
def test_a_wrong_profile_is_reported_with_the_configurations_problems(
    content: object, text: str, write: Write, site: Any
) -> None:
    path = site(content)
    with pytest.raises(ConfigError) as caught:
        load(write({"train": {"model_name": "m", "renderer_name": "r", "bath_size": 1}}))
    assert len(caught.value.problems) == 2
    assert any(text in problem and str(path) in problem for problem in caught.value.problems)
    assert any("bath_size" in problem for problem in caught.value.problems)


def test_variables_are_written_out(site: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TEAM_ROOT", "/team")
    site({"runs": "${TEAM_ROOT}/runs", "cache": "$TEAM_ROOT/c", "provider": "docker", "provider_options": {"gpu": "a"}})
    found, problems = read_site()
    assert problems == []
    assert (found.profile.runs, found.profile.cache) == ("/team/runs", "/team/c")


def test_no_variable_is_a_value_of_the_profile(site: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("runs", "RUNS", "cache", "CACHE", "PROVIDER", "PROVIDER_OPTIONS"):
        monkeypatch.setenv(name, "/from-the-environment")
    site({"cache": "/c"})
    found, problems = read_site()
    assert problems == []
    assert found.profile.model_dump(exclude_unset=True) == {"cache": "/c"}
    assert SiteProfile().runs is None


def test_what_earlier_releases_read_from_the_environment_is_refused(
    write: Write, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PLATOON_HARBOR_CACHE", "/x")
    monkeypatch.setenv("PLATOON_SITE", "/no/such/site.yaml")
    with pytest.raises(ConfigError) as caught:
        load(write(MINIMAL))
    assert len(caught.value.problems) == 2
    assert "use cache in the site profile" in caught.value.problems[0]
    assert "/no/such/site.yaml, which is not a file" in caught.value.problems[1]


@pytest.mark.parametrize(
    ("profile", "kwargs", "provider", "source", "options"),
    [
        ({}, {}, "docker", "default", {}),
        ({"provider": "enroot"}, {}, "enroot", "site", {}),
        ({"provider": "enroot"}, {"provider": None}, "enroot", "site", {}),
        ({"provider": "enroot"}, {"provider": "docker"}, "docker", "config", {}),
        (
            {"provider": "enroot", "provider_options": {"gpu": "a", "stage_images": True}},
            {"provider_options": {"gpu": "b"}},
            "enroot",
            "site",
            {"gpu": "b", "stage_images": True},
        ),
        (
            {"provider": "enroot", "provider_options": {"gpu": "a"}},
            {"provider": "docker", "provider_options": {"x": 1}},
            "docker",
            "config",
            {"x": 1},
        ),
    ],
)
def test_harbor_entries_take_the_sites_provider(
    profile: Any, kwargs: Any, provider: str, source: str, options: Any, write: Write, site: Any
) -> None:
    site(profile)
    loaded = load(write({**MINIMAL, "environments": [{"service": "harbor", "service_kwargs": kwargs}]}))
    record = loaded.site.providers[0]
    assert (record["provider"], record["source"], record["options"]) == (provider, source, options)
    assert loaded.config.environments[0].service_kwargs["provider"] == provider
    assert isolation_problems(loaded.site) == []


def test_only_the_run_itself_may_ask_for_sandboxes_that_do_not_isolate(write: Write, site: Any) -> None:
    class Named:
        def expand(self, entry: dict[str, Any]) -> dict[str, Any]:
            return {"service": "harbor", "service_kwargs": {"provider": "process"}, **entry}

    site({"provider": "docker"})
    path = write({**MINIMAL, "environments": [{"env": "x"}]})
    found = isolation_problems(load(path, resolver=Named()).site)
    assert len(found) == 1
    assert "process does not isolate" in found[0]
    own = write(
        {**MINIMAL, "environments": [{"env": "x", "service_kwargs": {"provider": "process"}, "service": "harbor"}]}
    )
    assert isolation_problems(load(own, resolver=Named()).site) == []
