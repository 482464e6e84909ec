"""The lines of the worker are read as JSON, and events stay byte for byte."""

from __future__ import annotations

import json
import random
from typing import Any

import pytest

from seriatim import _protocol as protocol
from seriatim._json import encode, end_of_value, one_line


def a_value(random_: random.Random, depth: int = 0) -> Any:
    kind = random_.randrange(8 if depth < 4 else 6)
    if kind == 6:
        return [a_value(random_, depth + 1) for _ in range(random_.randrange(4))]
    if kind == 7:
        return {a_text(random_): a_value(random_, depth + 1) for _ in range(random_.randrange(4))}
    return [None, True, False, random_.randrange(-(10**20), 10**20), random_.random() * 10**200, a_text(random_)][kind]


def a_text(random_: random.Random) -> str:
    return "".join(random_.choice('ab"\\{}[],: \n\t/é😀\u2028') for _ in range(random_.randrange(8)))


def written(random_: random.Random, value: Any) -> str:
    """Writes a value with blanks and escapes as another producer might."""
    text = json.dumps(
        value,
        ensure_ascii=random_.random() < 0.5,
        separators=random_.choice([(",", ":"), (" , ", " : "), (",  ", ":\t")]),
    )
    return text


@pytest.mark.parametrize("seed", range(300))
def test_events_stay_byte_for_byte(seed: int) -> None:
    random_ = random.Random(seed)
    texts = [written(random_, a_value(random_)) for _ in range(random_.randrange(1, 5))]
    name, blank = a_text(random_) + "x", random_.choice(["", " "])
    envelopes = [
        f'{{"id":{10 + at},"prev":{at},"object":{json.dumps(name)},"event":{text}}}' for at, text in enumerate(texts)
    ]
    members = [
        '"type":"batch"',
        '"batch":3',
        f'"object":{blank}{json.dumps(name)}',
        '"attempts":1',
        '"crashes":2',
        f'"events":{blank}[{(blank + "," + blank).join(envelopes)}]{blank}',
        f'"new":{texts[-1]}',
        '"token":"T"',
    ]
    has_once = random_.random() < 0.5
    if has_once:
        members.append(f'"once":{{{json.dumps(name)}:{texts[0]}}}')
    random_.shuffle(members)
    raw = ("{" + blank + f"{blank},{blank}".join(members) + "}" + blank + "\n").encode()
    line = protocol.parse(raw)
    assert isinstance(line, protocol.BatchLine)
    assert (line.batch, line.object, line.attempts, line.crashes, line.token) == (3, name, 1, 2, "T")
    assert [line.payload(at) for at in range(len(texts))] == texts
    assert [event for _, _, event in line.events] == [json.loads(text) for text in texts]
    assert [(id, prev) for id, prev, _ in line.events] == [(10 + at, at) for at in range(len(texts))]
    assert line.once == ({name: texts[0]} if has_once else {})
    for end in range(1, len(raw) - 2, 7):
        with pytest.raises(protocol.ProtocolError):
            protocol.parse(raw[:end])


def test_both_ways_to_read_a_line_agree() -> None:
    event = '{"type":"a","n":[1.0,{"events":[]}],"n":2}'
    text = f'{{"type":"batch","batch":1,"new":{{}},"events":[{{"id":3,"prev":2,"event":1,"event":{event}}}]}}\r'
    fast = protocol._fast(text)
    assert fast is not None
    assert fast == protocol._slow(text)
    assert protocol._fast('{"type":"once","once":{"a":1.0}}') is None
    assert protocol._fast('{"events":{}}') is None


def test_a_value_that_python_cannot_read_is_of_its_event_only() -> None:
    texts = ["1", "[NaN]", "7" * 5000, "[" * 100_000 + "]" * 100_000, '{"a": 1.0}']
    events = ",".join(f'{{"id":{at},"prev":0,"object":"a","event":{text}}}' for at, text in enumerate(texts))
    raw = f'{{"type":"batch","batch":1,"object":"a","attempts":0,"crashes":0,"events":[{events}]}}'.encode()
    line = protocol.parse(raw)
    assert isinstance(line, protocol.BatchLine)
    assert [isinstance(event, ValueError) for _, _, event in line.events] == [False, True, True, True, False]
    assert [line.payload(at) for at in range(len(texts))] == texts


@pytest.mark.parametrize(
    "event",
    ["5", "{}", '{"prev":0,"event":1}', '{"id":1,"event":1}', '{"id":1,"prev":0}', '{"id":[],"prev":0,"event":1}'],
)
def test_a_wrong_envelope_is_refused(event: str) -> None:
    line = f'{{"type":"batch","batch":1,"object":"a","attempts":0,"crashes":0,"events":[{event}]}}'
    with pytest.raises(protocol.ProtocolError, match="is not of the protocol"):
        protocol.parse(line.encode())


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "[}",
        '{"type":}',
        '{"type"}',
        '{"type":"batch",}',
        "{}{}",
        '{"a":1 "b":2}',
        "{1:2}",
        "nul",
        '{"type":1]',
    ],
)
def test_a_line_that_is_no_json_is_refused(text: str) -> None:
    with pytest.raises(protocol.ProtocolError, match="is not of the protocol"):
        protocol.parse(text.encode())


def test_the_end_of_a_value() -> None:
    for text in ('"a\\"]"', "-1.5e+7", "true", "null", '[[{"a":"]"}],2]', '{"a":{"b":"}"}}', '"\\\\"'):
        assert end_of_value(text + ",1]", 0) == len(text)


def test_an_answer_is_one_line() -> None:
    assert protocol.answer("transient", 1, 2, 'a\n"é"\ud800').count(b"\n") == 1
    assert one_line(b'{"a":\r\n1}') == b'{"a":  1}'
    assert (one_line(b"[\r1]"), one_line(b"[\n1]"), one_line(b"[1]")) == (b"[ 1]", b"[ 1]", b"[1]")
    assert protocol.log(1, 2, protocol.cut("a\n\ud800")) == b'{"type":"log","batch":1,"id":2,"text":"a\\n?"}\n'
    members = [("value", one_line(b"[\n1]"))]
    assert json.loads(protocol.with_raw("once", 1, 2, members)) == {"type": "once", "batch": 1, "id": 2, "value": [1]}
    assert encode({"b": 1, "a": "é"}) == '{"b":1,"a":"é"}'.encode()


@pytest.mark.parametrize(
    ("text", "kept"),
    [
        ("x" * 1000, "x" * 1000),
        ("x" * 1001, "x" * 1000),
        ("é" * 600, "é" * 500),
        ("x" + "é" * 600, "x" + "é" * 499),
        ("x" + "😀" * 300, "x" + "😀" * 249),
        ('"' * 1001, '"' * 1000),
        ("\x1b" * 2000, "\x1b" * 650),
        ("\ud800" * 1001, "?" * 1000),
    ],
)
def test_a_line_for_the_log_is_cut_between_characters(text: str, kept: str) -> None:
    assert protocol.cut(text) == kept
    assert len(protocol.log(2**53, 2**53, protocol.cut(text))) <= 4096
