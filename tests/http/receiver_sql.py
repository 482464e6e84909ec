"""Runs the statements of examples/receiver.sql, the first argument, in SQLite.

SQLite locks the whole database in place of a row, so `FOR UPDATE` is left out.
"""

import re
import sqlite3
import sys
import tempfile
import unittest
from pathlib import Path
from typing import NamedTuple, Optional


def statements(section: str) -> list[str]:
    """Returns the statements of a section, without its comments."""
    return [one.strip() for one in re.sub("--.*", "", section).split(";") if one.strip()]


HEAD, EXCLUSIVE, LOCKED = re.split(r"^(?=-- [12]\. )", Path(sys.argv.pop(1)).read_text(), flags=re.MULTILINE)


class Request(NamedTuple):
    """The headers of a request."""

    object: str
    id: int
    prev: int
    attempt: int = 1


class Receiver:
    """A connection of a receiver, whose work is a row for each event."""

    def __init__(self, file: Path) -> None:
        self.db = sqlite3.connect(file, isolation_level=None, timeout=0)

    def work(self, request: Request) -> None:
        self.db.execute("INSERT INTO work VALUES (:object, :id)", request._asdict())

    def begin(self, request: Request) -> Optional[int]:
        """Begins an exclusive request, and returns the answer; none if the work is to be done."""
        insert, update, _ = statements(EXCLUSIVE)
        self.db.execute("BEGIN")
        self.db.execute(insert, request._asdict())
        row = self.db.execute(update, request._asdict()).fetchall()
        self.db.execute("COMMIT")
        return answer(request, row[0][0]) if row else 503

    def end(self, request: Request) -> int:
        """Does the work of an exclusive request, and returns the answer."""
        _, _, update = statements(EXCLUSIVE)
        self.db.execute("BEGIN")
        self.work(request)
        changed = self.db.execute(update, request._asdict()).rowcount
        self.db.execute("COMMIT" if changed else "ROLLBACK")
        return 200 if changed else 503

    def lock(self, request: Request) -> Optional[int]:
        """Locks the object of a request, and returns the answer; none if the work is to be done."""
        begin, insert, select, _, commit = statements(LOCKED)
        self.db.execute(begin)
        try:
            self.db.execute(insert, request._asdict())
            [(last,)] = self.db.execute(select.replace(" FOR UPDATE", ""), request._asdict()).fetchall()
        except sqlite3.OperationalError:
            self.db.execute("ROLLBACK")
            raise
        status = answer(request, last)
        if status is not None:
            self.db.execute(commit if status == 200 else "ROLLBACK")
        return status

    def unlock(self, request: Request) -> int:
        """Does the work of a request that has locked its object, and returns the answer."""
        *_, update, commit = statements(LOCKED)
        self.work(request)
        self.db.execute(update, request._asdict())
        self.db.execute(commit)
        return 200


def answer(request: Request, last: int) -> Optional[int]:
    """Returns the answer that the comments of the file name; none if the work is to be done."""
    if last >= request.id:
        return 200
    return 503 if last < request.prev else None


class Tests(unittest.TestCase):
    """Each test has a database of its own, with two connections."""

    def setUp(self) -> None:
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.one, self.two = (Receiver(Path(folder.name) / "db") for _ in range(2))
        for receiver in (self.one, self.two):
            self.addCleanup(receiver.db.close)
        [table] = statements(HEAD)
        self.one.db.execute(table)
        self.one.db.execute("CREATE TABLE work (object, id)")

    def assert_done(self, *done: tuple[str, int]) -> None:
        self.assertEqual(self.one.db.execute("SELECT * FROM work ORDER BY rowid").fetchall(), list(done))

    def test_an_exclusive_event_is_handled_once(self) -> None:
        for object, id in (("a", 1), ("b", 1), ("a", 2), ("b", 2)):
            request = Request(object, id, id - 1, attempt=id * 10)
            self.assertIsNone(self.one.begin(request))
            self.assertEqual(self.one.end(request), 200)
            # It comes again, because the answer was lost.
            self.assertEqual(self.two.begin(request._replace(attempt=id * 10 + 1)), 200)
        self.assert_done(("a", 1), ("b", 1), ("a", 2), ("b", 2))

    def test_an_exclusive_request_that_is_late_is_refused(self) -> None:
        early = Request("a", 1, 0, attempt=10)
        later = early._replace(attempt=12)
        self.assertIsNone(self.one.begin(early))
        self.assertIsNone(self.two.begin(later))
        # The work of the first request ends after the second has begun.
        self.assertEqual(self.one.end(early), 503)
        self.assert_done()
        self.assertEqual(self.two.end(later), 200)
        # A request that was on its way for long.
        self.assertEqual(self.one.begin(early._replace(attempt=11)), 503)
        self.assert_done(("a", 1))

    def test_an_exclusive_event_waits_for_those_before_it(self) -> None:
        self.assertEqual(self.one.begin(Request("a", 3, 2, attempt=10)), 503)
        self.assert_done()

    def test_a_locked_event_is_handled_once(self) -> None:
        for object, id in (("a", 1), ("b", 1), ("a", 2), ("b", 2)):
            request = Request(object, id, id - 1)
            self.assertIsNone(self.one.lock(request))
            with self.assertRaisesRegex(sqlite3.OperationalError, "locked"):
                self.two.lock(request)
            self.assertEqual(self.one.unlock(request), 200)
            self.assertEqual(self.two.lock(request), 200)
        self.assertEqual(self.one.lock(Request("a", 4, 3)), 503)
        self.assert_done(("a", 1), ("b", 1), ("a", 2), ("b", 2))


unittest.main()
