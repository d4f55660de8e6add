"""The store: whole or absent, replaced in one step, gone when it expires, held by one server."""

from __future__ import annotations

from pathlib import Path

import pytest

from platoon.service.checkpoints import Checkpoint, CheckpointStore, UnknownCheckpoint, new_checkpoint


def saved(store: CheckpointStore, name: str, content: str, version: int = 1) -> Checkpoint:
    record = new_checkpoint("run:train:0", "weights", name, version=version, base_model="m", rank=4)

    def write(path: Path) -> None:
        (path / "weights").write_text(content)

    return store.save(record, write)


def content(store: CheckpointStore, name: str) -> str:
    return (store.folder(store.at(f"tinker://run:train:0/weights/{name}")) / "weights").read_text()


def folders(root: Path) -> int:
    return len(list((root / "data").iterdir()))


def test_checkpoints_outlive_the_store(tmp_path: Path) -> None:
    store = CheckpointStore(tmp_path)
    record = saved(store, "a", "first")
    store.close()
    again = CheckpointStore(tmp_path)
    assert again.all() == [record]
    assert content(again, "a") == "first"
    assert record.size_bytes == 5
    again.close()


def test_a_save_that_fails_leaves_the_old_one(tmp_path: Path) -> None:
    store = CheckpointStore(tmp_path)
    saved(store, "a", "first")

    def torn(path: Path) -> None:
        (path / "weights").write_text("half")
        raise OSError("disk full")

    with pytest.raises(OSError, match=r"cannot be written \(disk full; [\d,]+ bytes are free there\)"):
        store.save(new_checkpoint("run:train:0", "weights", "a", version=2, base_model="m", rank=4), torn)
    assert content(store, "a") == "first"
    assert folders(tmp_path) == 1
    store.close()


def test_replacing_removes_the_old_data(tmp_path: Path) -> None:
    store = CheckpointStore(tmp_path)
    saved(store, "a", "first")
    saved(store, "a", "second", version=2)
    assert content(store, "a") == "second"
    assert folders(tmp_path) == 1
    store.close()


def test_data_without_a_record_is_removed_when_the_store_opens(tmp_path: Path) -> None:
    store = CheckpointStore(tmp_path)
    saved(store, "a", "first")
    store.close()
    (tmp_path / "data" / ("0" * 32)).mkdir()
    (tmp_path / "partial" / ("a" * 32)).mkdir()
    (tmp_path / "partial" / f"{'b' * 32}.json").touch()
    (tmp_path / "data" / "somebody's").mkdir()
    again = CheckpointStore(tmp_path)
    assert content(again, "a") == "first"
    assert folders(tmp_path) == 2
    assert list((tmp_path / "partial").iterdir()) == []
    again.close()


def test_deleted_and_expired_checkpoints_are_gone(tmp_path: Path) -> None:
    store = CheckpointStore(tmp_path)
    store.delete(saved(store, "a", "x"))
    store.set_ttl(saved(store, "b", "x"), -1.0)
    store.set_ttl(saved(store, "c", "x"), 3600.0)
    assert [c.name for c in store.all()] == ["c"]
    assert folders(tmp_path) == 1
    for name in ("a", "b"):
        with pytest.raises(UnknownCheckpoint, match="no checkpoint"):
            store.at(f"tinker://run:train:0/weights/{name}")
    store.close()


@pytest.mark.parametrize("name", ["", "../a", "a/b", ".hidden", "x" * 151, "a b"])
def test_names_that_are_no_file_names_are_refused(tmp_path: Path, name: str) -> None:
    store = CheckpointStore(tmp_path)
    with pytest.raises(ValueError, match="cannot name a checkpoint"):
        saved(store, name, "x")
    store.close()


@pytest.mark.parametrize("path", ["", "file:///x", "tinker://run", "tinker://run/other/a", "tinker://run/weights/a/b"])
def test_other_paths_are_refused(tmp_path: Path, path: str) -> None:
    store = CheckpointStore(tmp_path)
    with pytest.raises(UnknownCheckpoint, match="not a checkpoint path"):
        store.at(path)
    store.close()


def test_a_broken_record_is_named(tmp_path: Path) -> None:
    CheckpointStore(tmp_path).close()
    (tmp_path / "records" / "broken.json").write_text("{")
    with pytest.raises(ValueError, match=r"broken\.json is not a checkpoint record"):
        CheckpointStore(tmp_path)


def test_two_servers_share_a_store_and_leave_each_others_saves_alone(tmp_path: Path) -> None:
    first = CheckpointStore(tmp_path)
    saved(first, "a", "by the first")
    seen: list[str] = []

    def write(path: Path) -> None:
        (path / "weights").write_text("being written")
        second = CheckpointStore(tmp_path)
        seen.append(content(second, "a"))
        saved(second, "b", "by the second")
        second.close()

    first.save(new_checkpoint("run:train:1", "weights", "c", version=1, base_model="m", rank=4), write)
    assert seen == ["by the first"]
    assert sorted(c.name for c in first.all()) == ["a", "b", "c"]
    assert [c.name for c in first.all("run:train:1")] == ["c"]
    first.close()
