/** Tests of small parts. */
import assert from "node:assert/strict";
import { test } from "node:test";
import { setFlagsFromString } from "node:v8";
import { runInNewContext } from "node:vm";
import { LimitTable } from "../dist/emit/limits.js";
import { readTransaction } from "../dist/emit/reply.js";
import { cut, escapeName } from "../dist/escape.js";
import { Keys, uniqueKey } from "../dist/names.js";
import { Output } from "../dist/worker/output.js";
import { LineReader, ProtocolError } from "../dist/worker/protocol.js";

test("lines are cut out of chunks of any size", () => {
    const text = '{"a":"é😀"}\r\n\n{"b":1}\nrest';
    for (let size = 1; size <= 30; size += 1) {
        const reader = new LineReader();
        const lines: string[] = [];
        const bytes = Buffer.from(text);
        for (let at = 0; at < bytes.length; at += size) {
            lines.push(...reader.lines(bytes.subarray(at, at + size)));
        }
        assert.deepEqual(lines, ['{"a":"é😀"}', "", '{"b":1}'], `pieces of ${size} bytes`);
    }
});

/** Story: each line was a part of the string of its chunk. So a small batch in hand kept 64 KiB. */
test("a line keeps no other line of its chunk in memory", () => {
    setFlagsFromString("--expose-gc");
    const collect = runInNewContext("gc") as () => void;
    const used = () => {
        collect();
        return process.memoryUsage().heapUsed;
    };
    const reader = new LineReader();
    const chunk = Buffer.from(`${"k".repeat(100)}\n${"x".repeat(64 * 1024 - 102)}\n`);
    const before = used();
    const kept = Array.from({ length: 500 }, () => reader.lines(chunk)[0]);
    const bytes = (used() - before) / kept.length;
    assert.equal(kept.at(-1), "k".repeat(100));
    assert.ok(bytes < 4096, `${bytes} bytes for a line of 100 bytes`);
});

test("a line above the limit, and one that is no UTF-8, are refused", () => {
    const reader = new LineReader(10);
    assert.deepEqual([...reader.lines(Buffer.from("1234567890\n12345"))], ["1234567890"]);
    assert.throws(() => [...reader.lines(Buffer.from("678901"))], ProtocolError);
    assert.throws(() => [...new LineReader().lines(Buffer.from([0xc3, 0x0a]))], ProtocolError);
});

test("answers are written together, and a later ok of a batch replaces an earlier one", async () => {
    const written: string[] = [];
    const output = new Output((text) => written.push(text));
    const [one, two] = [output.batch(1), output.batch(2)];
    one.ok(10);
    two.ok(20);
    one.ok(11);
    one.line('{"other":1}');
    one.ok(12);
    await new Promise((resolve) => setImmediate(resolve));
    assert.deepEqual(written, [
        '{"type":"ok","batch":1,"id":11}\n{"type":"ok","batch":2,"id":20}\n{"other":1}\n{"type":"ok","batch":1,"id":12}\n',
    ]);
    one.ok(13);
    output.flush();
    output.flush();
    assert.equal(written.length, 2);
    assert.equal(written[1], '{"type":"ok","batch":1,"id":13}\n');
});

test("names are escaped as the commands print them", () => {
    for (const [name, shown] of [
        ["work:1 é日本😀", "work:1 é日本😀"],
        ["a\\b\n\r\t", "a\\\\b\\n\\r\\t"],
        [
            "\u001b[31m\u0085\u2028\u202e\u200b\ufeff\u{e0041}",
            "\\u{1b}[31m\\u{85}\\u{2028}\\u{202e}\\u{200b}\\u{feff}\\u{e0041}",
        ],
    ] as const) {
        assert.equal(escapeName(name), shown);
    }
});

test("a text is cut between characters", () => {
    for (const [text, bytes, kept] of [
        ["abc", 3, "abc"],
        ["abcd", 3, "abc"],
        ["aé", 2, "a"],
        ["é😀", 5, "é"],
        ["é😀", 6, "é😀"],
        ["\ud800", 3, "\ufffd"],
    ] as const) {
        assert.equal(cut(text, bytes), kept);
    }
});

test("made keys grow, and differ", () => {
    const made = Array.from({ length: 1000 }, uniqueKey);
    assert.deepEqual(made.toSorted(), made);
    assert.equal(new Set(made).size, 1000);
});

test("the longest selector counts", () => {
    const limit = (queued: number | null, markers: number | null) =>
        JSON.stringify({ queued_max: queued, markers_max: markers });
    const table = LimitTable.read({
        "*": limit(10, 99),
        "a:*": limit(5, 7),
        "a:b:*": limit(null, null),
        bad: "{",
        "c:*": '{"queued_max":-1}',
    });
    assert.deepEqual(table.of("x"), { queuedMax: 10, markersMax: 99 });
    assert.deepEqual(table.of("a:1"), { queuedMax: 5, markersMax: 99 });
    assert.deepEqual(table.of("a:b:1"), { queuedMax: undefined, markersMax: 99 });
    assert.deepEqual(table.of("c:1"), { queuedMax: 10, markersMax: 99 }, "an invalid limit is none");
    const some = LimitTable.read({ "a:*": limit(5, null), ":*": limit(6, null) });
    assert.deepEqual([some.of("a"), some.of("b:a:")], [undefined, undefined]);
    assert.deepEqual(some.of("a:")?.queuedMax, 5);
    assert.deepEqual(some.of(":x")?.queuedMax, 6);
});

/** Returns the outcome of a transaction of two commands with these replies. */
function outcome(...texts: string[]): string {
    const replies = texts.map((text) => {
        const error = new Error(text);
        error.name = text.startsWith("lost") ? "Error" : "ReplyError";
        return text === "" ? "OK" : error;
    });
    try {
        readTransaction(replies);
        return "done";
    } catch (error) {
        return (error as { outcome: string }).outcome;
    }
}

test("a refusal among the replies to a transaction shows what ran", () => {
    const [no, alone, oom, aborted] = [
        "NOPERM no",
        "ERR EXEC without MULTI",
        "OOM full",
        "EXECABORT discarded",
    ];
    assert.equal(outcome(no, "", "", alone), "unknown");
    assert.equal(outcome(no, no, "", alone), "unknown");
    assert.equal(outcome(no, no, no, no), "refused");
    assert.equal(outcome("", "", no, aborted), "refused");
    assert.equal(outcome("", no, oom, aborted), "out_of_memory");
    assert.equal(outcome("", "", "", no), "refused");
    assert.equal(outcome("", "", "", ""), "unknown");
    assert.equal(outcome("", "", "", "lost the connection"), "unknown");
    assert.equal(outcome("", "lost the connection", "", no), "unknown");
    for (const [line, wanted] of [
        ["EXECABORT Transaction discarded because of: OOM command not allowed", "out_of_memory"],
        ["READONLY You can't write against a read only replica.", "refused"],
        ["LOADING Redis is loading the dataset in memory", "refused"],
        ["MOVED 3999 127.0.0.1:6381", "refused"],
        ["SOMETHING new", "unknown"],
    ] as const) {
        assert.equal(outcome("", "", "", line), wanted, line);
    }
});

test("a namespace has its prefix", () => {
    const keys = new Keys("shop");
    assert.deepEqual([keys.events("a"), keys.markers], ["{shop:0}:a:events", "{shop:0}:objects.with.events"]);
    for (const bad of ["", "a b", "a:b", "{a}", "x".repeat(65)]) {
        assert.throws(() => new Keys(bad), /is invalid: a namespace has 1 to 64/);
    }
});
