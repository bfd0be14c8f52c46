"""What is kept, kept: the same laws for SQLite and for PostgreSQL."""

import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest
import sqlalchemy as sql
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as some
from postgres import postgres

from sim import store as stores
from sim.store import DAY, Store, StoreError

ROOT = Path(__file__).parents[1]
OTHER = "f" * 16


@pytest.fixture(scope="session")
def postgres_url():
    with postgres() as url:
        yield url


@pytest.fixture(params=["sqlite", "postgresql"])
def url(request, tmp_path) -> str:
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path / 'store.db'}"
    url = request.getfixturevalue("postgres_url")
    engine = Store(url).engine
    stores.tables.drop_all(engine)
    engine.dispose()
    return url


@pytest.fixture
def store(url):
    store = Store(url, mb=1, days=90)
    yield store
    store.engine.dispose()


@pytest.fixture
def clock(monkeypatch):
    """clock.now is the time; it stands still."""

    class Clock:
        now = 1.8e9

        def time(self) -> float:
            return self.now

    clock = Clock()
    monkeypatch.setattr(stores, "time", clock)
    return clock


def rows(store: Store) -> int:
    with store.engine.connect() as db:
        return db.execute(sql.select(sql.func.count()).select_from(stores.CONTENT)).scalar_one()


def why(call, *args) -> str:
    with pytest.raises(StoreError) as error:
        call(*args)
    return str(error.value)


def saved(store: Store, text: str, title: str = "", tags=(), owner: str = "") -> str:
    name = store.put("scenario", text.encode(), {"of": text})
    store.save(name, title or text, tags, owner=owner, picture=b"picture of " + text.encode())
    return name


def test_content_comes_back_byte_for_byte_under_the_name_of_its_hash(store):
    data, about = bytes(range(256)) * 100, {"rows": 3, "of": ["a", "ü", None]}
    name = store.put("trace", data, about)
    content = store.get(name)
    assert (content.name, content.kind, content.about, content.data) == (name, "trace", about, data)
    assert store.put("trace", data[:-1], {}) != name


def test_content_is_never_changed(store):
    name = store.put("trace", b"rows", {"file": "first"})
    assert store.put("measured", b"rows", {"file": "second"}) == name
    assert store.get(name).about == {"file": "first"}
    assert store.get(name).kind == "trace"
    assert rows(store) == 1


def test_another_content_of_the_same_name_is_refused(store, monkeypatch):
    monkeypatch.setattr(stores, "name_of", lambda data: OTHER)
    store.put("trace", b"one", {})
    assert "change a byte" in why(store.put, "trace", b"two", {})
    assert store.get(OTHER).data == b"one"


def test_many_writers_of_the_same_content_are_one_row(url):
    several = [Store(url) for _ in range(4)]
    together, names = threading.Barrier(8), []

    def write(store):
        together.wait()
        for k in range(5):
            names.append(store.put("trace", b"%d" % k, {}))

    threads = [threading.Thread(target=write, args=(store,)) for store in several * 2]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(names) == 40
    assert len(set(names)) == rows(several[0]) == 5
    for store in several:
        store.engine.dispose()


def started(code: str, url: str) -> subprocess.Popen:
    pipe = subprocess.PIPE if "print" in code else None
    return subprocess.Popen([sys.executable, "-c", code, url], cwd=ROOT, stdout=pipe, text=True)


def test_what_was_acknowledged_outlives_a_writer_that_is_killed(url):
    writer = started(
        "import itertools, sys\n"
        "from sim.store import Store\n"
        "store = Store(sys.argv[1])\n"
        "for k in itertools.count():\n"
        "    print(store.put('trace', b'%d ' % k * 2_000, {'k': k}), flush=True)\n",
        url,
    )
    assert writer.stdout
    said = [writer.stdout.readline() for _ in range(30)]
    writer.send_signal(signal.SIGKILL)
    said += writer.stdout.read().splitlines(keepends=True)
    writer.stdout.close()
    writer.wait()
    names = [line.strip() for line in said if line.endswith("\n")]
    store = Store(url)
    for k, name in enumerate(names):
        assert store.get(name).data == b"%d " % k * 2_000
    assert len(names) <= rows(store) <= len(names) + 1
    store.put("trace", b"and on", {})
    store.engine.dispose()


def test_a_writer_that_dies_before_its_commit_leaves_nothing_and_locks_nobody_out(url):
    writer = started(
        "import os, signal, sys\n"
        "from sqlalchemy import event\n"
        "from sim.store import Store\n"
        "store = Store(sys.argv[1])\n"
        "event.listen(store.engine, 'commit', lambda db: os.kill(os.getpid(), signal.SIGKILL))\n"
        "store.put('trace', b'rows', {})\n",
        url,
    )
    assert writer.wait(30) == -signal.SIGKILL
    store = Store(url)
    assert rows(store) == 0
    assert store.get(store.put("trace", b"rows", {})).data == b"rows"
    store.engine.dispose()


def test_names_of_nothing_kept_are_told_from_what_is_gone(store):
    for name in (OTHER, "", "../../etc/passwd", "a\0b", "'; DROP TABLE content", "0" * 1_000):
        assert "link" in why(store.get, name)
    assert OTHER in why(store.get, OTHER)


def test_a_deleted_run_says_so_until_the_deletion_is_undone(store):
    name = saved(store, "one", "Mine")
    assert store.delete(name, "")
    assert not store.delete(name, "")
    assert store.shelf() == []
    assert "was deleted on 20" in why(store.get, name)
    assert store.delete(name, "", undo=True)
    assert [run.title for run in store.shelf()] == ["Mine"]
    assert store.get(name).data == b"one"


def test_only_its_owner_takes_a_run_off_the_shelf(store):
    name = saved(store, "one", owner="ada@example.org")
    for other in ("", "bob@example.org", "ADA@example.org"):
        assert not store.delete(name, other)
    assert store.delete(name, "ada@example.org")
    assert not store.delete(name, "bob@example.org", undo=True)


def test_a_run_that_two_have_saved_is_there_as_long_as_one_keeps_it(store):
    name = saved(store, "one", "Ada's", owner="ada")
    saved(store, "one", "Bob's", owner="bob")
    assert rows(store) == 1
    assert {run.title for run in store.shelf()} == {"Ada's", "Bob's"}
    store.delete(name, "ada")
    assert store.get(name).data == b"one"
    assert store.saved(name).title == "Bob's"


def test_saving_again_gives_another_title(store):
    name = saved(store, "one", "First", ["a"])
    saved(store, "one", "Second", ["b"])
    assert [(run.name, run.title, run.tags) for run in store.shelf()] == [(name, "Second", ["b"])]


def test_the_shelf_is_searched_by_every_word_and_by_tag(store, clock):
    for k, (title, tags) in enumerate(
        [("Chunk 128", ["review"]), ("Größe 100%", ["nightly", "review"]), ("ЧАНК_128", [])]
    ):
        clock.now += k
        saved(store, str(k), title, tags)

    def found(**asked):
        return [run.title for run in store.shelf(**asked)]

    assert found() == ["ЧАНК_128", "Größe 100%", "Chunk 128"]
    assert found(search="128 chunk") == ["Chunk 128"]
    assert found(search="чанк") == ["ЧАНК_128"]
    assert found(search="GRÖSSE") == ["Größe 100%"]
    assert found(search="100%") == ["Größe 100%"]
    assert found(search="%") == ["Größe 100%"]
    assert found(search="k_1") == []  # a search knows no wildcards
    assert found(search="nightly") == found(tag="nightly") == ["Größe 100%"]
    assert found(tag="review", first=1) == ["Chunk 128"]
    assert found(most=1) == ["ЧАНК_128"]
    assert found(search="review\0") == ["Größe 100%", "Chunk 128"]
    assert store.tags() == ["nightly", "review"]


@settings(
    max_examples=20, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(title=some.text(max_size=300), tags=some.lists(some.text(max_size=30), max_size=3))
def test_any_title_is_kept_as_one_line(store, title, tags):
    name = saved(store, "one", title, tags)
    run = store.saved(name)
    assert run.title.isprintable()
    assert 0 < len(run.title) <= 200
    if title.isprintable() and title.strip() == title and "  " not in title and title:
        assert run.title == title[:200].strip()
    for tag in run.tags:
        assert tag in store.tags()
        assert tag.isprintable()


def test_a_full_store_refuses_and_says_what_to_do(store):
    store.save(store.put("trace", b"1" * 700_000, {}), "Kept")
    said = why(store.put, "trace", b"2" * 400_000, {})
    assert "holds 0.7 of 1 MB and this trace has 0.4" in said
    assert "delete runs in the Library, or raise SLOTSCOPE_MAX_STORE_MB" in said
    assert rows(store) == 1
    store.put("trace", b"3" * 200_000, {})


def test_deleted_runs_make_room_and_kept_ones_never_do(store):
    kept = store.put("trace", b"1" * 400_000, {})
    store.save(kept, "Kept")
    gone = store.put("trace", b"2" * 400_000, {})
    store.save(gone, "Gone", picture=b"3" * 10_000)
    store.delete(gone, "")
    store.put("trace", b"4" * 400_000, {})
    assert store.get(kept).data == b"1" * 400_000
    assert "was deleted" in why(store.get, gone)
    assert not store.delete(gone, "", undo=True)  # its bytes are gone
    store.save(store.put("trace", b"5", {}), "Five")


def test_what_nobody_saved_ages_and_comes_back_with_its_file(store, clock):
    unsaved = store.put("trace", b"unsaved", {})
    kept = saved(store, "kept")
    needed = store.put("trace", b"needed", {})
    needs = store.put("scenario", b"needs", {}, needed)
    store.save(needs, "Needs")
    clock.now += 91 * DAY
    store.put("trace", b"another", {})
    assert "dropped, since nobody saved it" in why(store.get, unsaved)
    assert store.get(kept).data == b"kept"
    assert store.get(needed).data == b"needed"
    assert store.put("trace", b"unsaved", {}) == unsaved
    assert store.get(unsaved).data == b"unsaved"


def test_a_deletion_can_be_undone_for_a_day(store, clock):
    needed = store.put("trace", b"needed", {})
    name = store.put("scenario", b"needs", {}, needed)
    store.save(name, "Needs")
    store.delete(name, "")
    clock.now += 0.9 * DAY
    store.put("trace", b"1", {})
    assert store.delete(name, "", undo=True)
    store.delete(name, "")
    clock.now += 1.1 * DAY
    store.put("trace", b"2", {})
    assert not store.delete(name, "", undo=True)
    assert "dropped" in why(store.get, needed)


def test_a_store_that_is_not_there_says_where_to_look(tmp_path):
    assert "give sqlite:///FILE" in why(Store, "nonsense")
    assert "give sqlite:///FILE" in why(Store, "oracle+nothing://x")
    assert "SLOTSCOPE_DATABASE_URL" in why(Store, "postgresql://u:secret@127.0.0.1:1/x")
    assert "secret" not in why(Store, "postgresql://u:secret@127.0.0.1:1/x")
    file = tmp_path / "file.db"
    file.write_bytes(os.urandom(4_096))
    assert "SLOTSCOPE_DATABASE_URL" in why(Store, f"sqlite:///{file}")


def test_sqlite_is_one_file_in_wal_mode(tmp_path):
    file = tmp_path / "store.db"
    store = Store(f"sqlite:///{file}")
    with store.engine.connect() as db:
        assert db.exec_driver_sql("PRAGMA journal_mode").scalar() == "wal"
        assert db.exec_driver_sql("PRAGMA synchronous").scalar() == 2  # FULL
    store.engine.dispose()
    assert [path.name for path in tmp_path.iterdir()] == ["store.db"]
