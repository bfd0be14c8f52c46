"""What outlives a session: content under the name of its hash, and the shelf of saved runs.

`Store.put` keeps bytes of any kind once, never changed; a link carries their name. `Store.save`
gives content a title, tags, a picture and an owner, and thereby keeps it until it is deleted.
"""

import hashlib
import os
import re
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

import sqlalchemy as sql
from sqlalchemy import event
from sqlalchemy.exc import SQLAlchemyError

from .parameter import ScenarioError
from .traces import name_of

URL = os.environ.get("SLOTSCOPE_DATABASE_URL", "")  # empty: one SQLite file in this folder
MAX_STORE_MB = int(os.environ.get("SLOTSCOPE_MAX_STORE_MB", 2_000))
STORE_DAYS = float(os.environ.get("SLOTSCOPE_STORE_DAYS", 90))  # of what nobody saved
FOLDER = Path(__file__).parents[1] / ".store"
DAY = 86_400.0
UNDO = DAY  # seconds for which a deletion can be undone, space permitting
PATIENCE = 30  # seconds for which a writer waits for another

NAME = re.compile("[0-9a-f]{16}")

tables = sql.MetaData()
CONTENT = sql.Table(
    "content",
    tables,
    sql.Column("name", sql.String(16), primary_key=True),
    sql.Column("sha256", sql.String(64), nullable=False),
    sql.Column("kind", sql.String(20), nullable=False),
    sql.Column("about", sql.JSON, nullable=False),
    sql.Column("refers", sql.String(16)),  # to content that this one is nothing without
    sql.Column("at", sql.Double, nullable=False),  # when last put; seconds since 1970
    sql.Column("size", sql.BigInteger, nullable=False),
    sql.Column("data", sql.LargeBinary),  # NULL: dropped, and the row says that it was here
)
SAVED = sql.Table(
    "saved",
    tables,
    sql.Column("name", sql.ForeignKey(CONTENT.c.name), primary_key=True),
    sql.Column("owner", sql.String(200), primary_key=True),
    sql.Column("title", sql.Text, nullable=False),
    sql.Column("tags", sql.JSON, nullable=False),
    sql.Column("words", sql.Text, nullable=False),  # what a search looks at
    sql.Column("at", sql.Double, nullable=False, index=True),
    sql.Column("size", sql.BigInteger, nullable=False),
    sql.Column("picture", sql.LargeBinary),
    sql.Column("deleted", sql.Double),
)


class StoreError(ScenarioError):
    """What can't be kept or had: one sentence that names it and the way out."""


class Content(NamedTuple):
    """Immutable bytes: their kind, and what their writer said about them (a JSON object)."""

    name: str
    kind: str
    about: dict[str, Any]
    at: float
    data: bytes


class Saved(NamedTuple):
    """A run on the shelf. Times are seconds since 1970; `deleted` is None while it stands there."""

    name: str
    owner: str
    title: str
    tags: list[str]
    at: float
    picture: bytes | None
    deleted: float | None
    kind: str
    about: dict[str, Any]


def day(seconds: float) -> str:
    """'2026-11-30', in UTC."""
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d")


class Store:
    """One database, SQLite or PostgreSQL, for any number of servers. StoreError if it can't be had.

    url: as SQLAlchemy has it; empty for the usual file. mb: most of content and pictures together.
    days: how long content is kept that nobody saved.
    """

    def __init__(self, url: str = URL, mb: float = MAX_STORE_MB, days: float = STORE_DAYS):
        if not url:
            FOLDER.mkdir(exist_ok=True)
            url = f"sqlite:///{FOLDER / 'slotscope.db'}"
        self.mb, self.days = mb, days
        try:
            address = sql.make_url(url)
            if address.get_backend_name() in ("postgresql", "postgres"):
                address = address.set(drivername="postgresql+psycopg")
            self.engine = sql.create_engine(address, pool_pre_ping=True)
        except (SQLAlchemyError, ImportError) as error:
            raise StoreError(
                f"SLOTSCOPE_DATABASE_URL can't be read ({_reason(error)}): give sqlite:///FILE or"
                " postgresql://USER:PASSWORD@HOST/NAME"
            ) from None
        if self.engine.dialect.name == "sqlite":
            event.listen(self.engine, "connect", _as_wal)
            event.listen(self.engine, "begin", _begin)
        with self._writing() as db:
            tables.create_all(db)

    @contextmanager
    def _writing(self) -> Iterator[sql.Connection]:
        """A transaction that is alone with what it reads, and durable once it is over."""
        with self._spoken(), self.engine.connect() as db:
            db = db.execution_options(writes=True)
            with db.begin():
                if self.engine.dialect.name == "postgresql":
                    db.execute(sql.text("SELECT pg_advisory_xact_lock(7075)"))
                yield db

    @contextmanager
    def _reading(self) -> Iterator[sql.Connection]:
        with self._spoken(), self.engine.begin() as db:
            yield db

    @contextmanager
    def _spoken(self) -> Iterator[None]:
        try:
            yield
        except SQLAlchemyError as error:
            raise StoreError(
                f"the store does not answer ({_reason(error)}): look at SLOTSCOPE_DATABASE_URL and"
                " try again"
            ) from error

    def put(self, kind: str, data: bytes, about: dict[str, Any], refers: str | None = None) -> str:
        """Keep `data`; its name. Content that is there already stays as it is.

        refers: the name of content that this one needs, kept as long. StoreError over the quota.
        """
        name, digest = name_of(data), hashlib.sha256(data).hexdigest()
        with self._writing() as db:
            row = db.execute(
                sql.select(CONTENT.c.sha256, CONTENT.c.data.is_not(None)).where(_named(name))
            ).first()
            if row and row[0] != digest:
                raise StoreError(f"other content has the name {name}: change a byte of this one")
            if row and row[1]:
                db.execute(sql.update(CONTENT).where(_named(name)).values(at=time.time()))
                return name
            self._make_room(db, len(data), f"this {kind}")
            values: dict[str, Any] = {
                "kind": kind,
                "about": about,
                "refers": refers,
                "at": time.time(),
                "size": len(data),
                "data": data,
            }
            if row:
                db.execute(sql.update(CONTENT).where(_named(name)).values(values))
            else:
                db.execute(sql.insert(CONTENT).values(name=name, sha256=digest, **values))
        return name

    def get(self, name: str) -> Content:
        """The content of that name. StoreError says whether it was deleted, aged, or is foreign."""
        if not NAME.fullmatch(name):
            raise StoreError(f"{name[:40]!r} is no name of anything kept: copy the link anew")
        with self._reading() as db:
            row = db.execute(sql.select(CONTENT).where(_named(name))).first()
            saved = db.execute(
                sql.select(SAVED.c.deleted).where(SAVED.c.name == name).order_by(SAVED.c.deleted)
            ).all()
        if row is None:
            raise StoreError(
                f"{name[:40]!r} is not in this server's store: open the link where it was made, or"
                " ask for the file"
            )
        if saved and all(deleted is not None for (deleted,) in saved):
            raise StoreError(
                f"{name!r} was deleted on {day(max(d for (d,) in saved))}: ask its owner to undo"
                " that in the Library, or for another link"
            )
        if row.data is None:
            raise StoreError(
                f"{name!r} was put here on {day(row.at)} and dropped, since nobody saved it: ask"
                " for the file"
            )
        return Content(row.name, row.kind, row.about, row.at, bytes(row.data))

    def save(
        self,
        name: str,
        title: str,
        tags: Sequence[str] = (),
        *,
        owner: str = "",
        picture: bytes | None = None,
        words: str = "",
    ) -> None:
        """Put content on the shelf, or give it another title there. StoreError over the quota.

        words: what a search finds it by, beside title and tags.
        """
        size = len(picture or b"")
        values: dict[str, Any] = {
            "title": _line(title) or name,
            "tags": [t for tag in tags if (t := _line(tag))],
            "at": time.time(),
            "size": size,
            "picture": picture,
            "deleted": None,
        }
        values["words"] = _searched(" ".join([values["title"], *values["tags"], name, words]))
        mine = sql.and_(SAVED.c.name == name, SAVED.c.owner == owner)
        with self._writing() as db:
            self._make_room(db, size, "this run")
            if not db.execute(sql.update(SAVED).where(mine).values(values)).rowcount:
                db.execute(sql.insert(SAVED).values(name=name, owner=owner, **values))

    def shelf(self, search: str = "", tag: str = "", first: int = 0, most: int = 24) -> list[Saved]:
        """Saved runs, the newest first, that hold every word of `search` and bear `tag`."""
        query = self._shelf().where(SAVED.c.deleted.is_(None))
        for word in _searched(search).split():
            query = query.where(SAVED.c.words.contains(word, autoescape=True))
        query = query.order_by(SAVED.c.at.desc(), SAVED.c.name)
        with self._reading() as db:
            if not tag:
                return [Saved(*row) for row in db.execute(query.offset(first).limit(most))]
            rows = [row for row in db.execute(query) if tag in row.tags]
        return [Saved(*row) for row in rows[first : first + most]]

    def tags(self) -> list[str]:
        """All tags on the shelf, in order."""
        with self._reading() as db:
            rows = db.execute(sql.select(SAVED.c.tags).where(SAVED.c.deleted.is_(None))).all()
        return sorted({tag for (tags,) in rows for tag in tags}, key=str.casefold)

    def saved(self, name: str) -> Saved | None:
        """The run of that name on the shelf, if it stands there: whoever saved it first."""
        query = self._shelf().where(SAVED.c.name == name, SAVED.c.deleted.is_(None))
        with self._reading() as db:
            row = db.execute(query.order_by(SAVED.c.at)).first()
        return Saved(*row) if row else None

    @staticmethod
    def _shelf() -> sql.Select:
        columns = [SAVED.c[name] for name in Saved._fields if name in SAVED.c]
        return sql.select(*columns, CONTENT.c.kind, CONTENT.c.about).join(CONTENT)

    def delete(self, name: str, owner: str, undo: bool = False) -> bool:
        """Take `owner`'s run off the shelf, or put it back; False if there is none to be had."""
        mine = sql.and_(
            SAVED.c.name == name,
            SAVED.c.owner == owner,
            SAVED.c.deleted.is_not(None) if undo else SAVED.c.deleted.is_(None),
        )
        there = sql.exists().where(CONTENT.c.name == name, CONTENT.c.data.is_not(None))
        values = {"deleted": None if undo else time.time()}
        with self._writing() as db:
            return bool(db.execute(sql.update(SAVED).where(mine, there).values(values)).rowcount)

    def _make_room(self, db: sql.Connection, size: int, what: str) -> None:
        """Drop what has aged and, for want of space, what was deleted. StoreError if it is full."""
        self._drop(db, time.time() - UNDO)
        if self._used(db) + size > self.mb * 1e6:
            self._drop(db, time.time())
        used = self._used(db)
        if used + size > self.mb * 1e6:
            raise StoreError(
                f"the store holds {used / 1e6:,.1f} of {self.mb:,g} MB and {what} has"
                f" {size / 1e6:,.1f}: delete runs in the Library, or raise SLOTSCOPE_MAX_STORE_MB"
            )

    def _used(self, db: sql.Connection) -> int:
        content = sql.select(sql.func.coalesce(sql.func.sum(CONTENT.c.size), 0)).where(
            CONTENT.c.data.is_not(None)
        )
        pictures = sql.select(sql.func.coalesce(sql.func.sum(SAVED.c.size), 0))
        return int(db.execute(content).scalar_one()) + int(db.execute(pictures).scalar_one())

    def _drop(self, db: sql.Connection, deleted_before: float) -> None:
        """The bytes of what nobody has on the shelf and is too old, or was deleted before then."""
        dead = sql.select(SAVED.c.name).where(SAVED.c.deleted < deleted_before)
        kept = sql.select(SAVED.c.name).where(
            SAVED.c.deleted.is_(None) | (SAVED.c.deleted >= deleted_before)
        )
        parent = CONTENT.alias()

        def with_referred(names):
            referred = sql.select(parent.c.refers).where(parent.c.name.in_(names))
            return names.union(referred.where(parent.c.refers.is_not(None)))

        unsaved = sql.and_(CONTENT.c.data.is_not(None), CONTENT.c.name.not_in(with_referred(kept)))
        over = CONTENT.c.name.in_(with_referred(dead)) | (
            CONTENT.c.at < time.time() - self.days * DAY
        )
        db.execute(sql.update(CONTENT).where(unsaved, over).values(data=None))
        db.execute(
            sql.update(SAVED).where(SAVED.c.deleted < deleted_before).values(picture=None, size=0)
        )


def _named(name: str):
    return CONTENT.c.name == name


def _line(text: str) -> str:
    """Text as one line, without what only a machine would write."""
    return " ".join("".join(c if c.isprintable() else " " for c in text[:1_000]).split())[:200]


def _searched(text: str) -> str:
    return "".join(c if c.isprintable() else " " for c in text.casefold())


def _reason(error: BaseException) -> str:
    text = str(getattr(error, "orig", None) or error)
    return " ".join(text.splitlines()[0].split())[:120] if text else type(error).__name__


def _as_wal(connection, _) -> None:
    connection.isolation_level = None  # transactions begin where `_begin` says so
    patience = f"busy_timeout={1_000 * PATIENCE}"
    for setting in (patience, "journal_mode=WAL", "synchronous=FULL", "foreign_keys=ON"):
        connection.execute(f"PRAGMA {setting}")


def _begin(db: sql.Connection) -> None:
    # A writer waits for its turn here: one that had read first would be told to try again.
    db.exec_driver_sql("BEGIN IMMEDIATE" if db.get_execution_options().get("writes") else "BEGIN")
