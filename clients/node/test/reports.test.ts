/** Tests of the progress and the log lines of handlers: what is written, in which order, and how much may wait. */
import assert from "node:assert/strict";
import { test } from "node:test";
import { type HandlerContext, HandlerEnded, InvalidProgress, RawJson, Worker } from "seriatim";
import { HandlerTest } from "seriatim/testing";
import { type Answers, Output } from "../dist/worker/output.js";
import { logText } from "../dist/worker/reports.js";
import { batch, HELLO, program } from "./serving.js";
import { type Process, until } from "./support.js";

const DROPPED = "lines before this one were dropped: the handler logs faster than the worker reads";

/** Answers are written at the end of a turn. */
const turn = () => new Promise((resolve) => setImmediate(resolve));

interface Line {
    readonly type: string;
    readonly batch: number;
    readonly id: number;
    readonly value?: unknown;
    readonly text?: string;
}

/** The answers of two batches, what was written, and the calls that say that this was read. */
function written(): { one: Answers; two: Answers; writes: unknown[][]; read: (() => void)[] } {
    const writes: unknown[][] = [];
    const read: (() => void)[] = [];
    const output = new Output((text, done) => {
        assert.ok(text.endsWith("\n"));
        const lines = text
            .trimEnd()
            .split("\n")
            .map((line) => JSON.parse(line) as Line);
        writes.push(lines.map(({ type, batch, id, value, text }) => [type, batch, id, value ?? text]));
        if (done !== undefined) {
            read.push(done);
        }
    });
    return { one: output.batch(1), two: output.batch(2), writes, read };
}

test("reports stand between the results of the events before and of their own event", async () => {
    const { one, two, writes, read } = written();
    one.ok(10);
    one.ok(11);
    one.progress(12, "1");
    one.log(12, "a");
    one.progress(12, "2");
    one.ok(12);
    one.ok(13);
    two.log(20, "b");
    two.line('{"type":"rejected","batch":2,"id":20}');
    one.log(14, "c");
    await turn();
    assert.deepEqual(writes, [
        [
            ["ok", 1, 11, undefined],
            ["log", 1, 12, "a"],
            ["progress", 1, 12, 2],
            ["ok", 1, 13, undefined],
            ["log", 2, 20, "b"],
            ["rejected", 2, 20, undefined],
            ["log", 1, 14, "c"],
        ],
    ]);
    assert.equal(read.length, 1, "the report of the event in hand asks for a call");
});

test("reports wait until those before them are read, or until the result of their event", async () => {
    const { one, two, writes, read } = written();
    one.progress(10, "0");
    await turn();
    for (let n = 1; n <= 150; n += 1) {
        one.progress(10, String(n));
        one.log(10, `line ${n}`);
        two.progress(20, `[${n}]`);
        await turn();
    }
    assert.deepEqual(writes, [[["progress", 1, 10, 0]]]);
    two.ok(20);
    await turn();
    assert.deepEqual(writes.splice(0), [
        [["progress", 1, 10, 0]],
        [
            ["progress", 2, 20, [150]],
            ["ok", 2, 20, undefined],
        ],
    ]);
    read.shift()?.();
    await turn();
    const kept = Array.from({ length: 100 }, (_, at) => ["log", 1, 10, `line ${at + 51}`]);
    assert.deepEqual(writes.splice(0), [
        [["log", 1, 10, `50 ${DROPPED}`], ...kept, ["progress", 1, 10, 150]],
    ]);
    read.shift()?.();
    await turn();
    assert.deepEqual(writes, [], "nothing is written twice");
    one.log(10, "last");
    await turn();
    assert.deepEqual(writes, [[["log", 1, 10, "last"]]]);
});

/** Runs one handler. */
async function runOf(handler: (cx: HandlerContext) => unknown) {
    const worker = new Worker();
    worker.onOther<unknown>((_, cx) => handler(cx));
    return await new HandlerTest(worker).run({ event: 1 });
}

test("a progress is at most 1 KiB of JSON, and a line of the log a text", async () => {
    const ran = await runOf((cx) => {
        cx.progress("é".repeat(511));
        for (const [wrong, why] of [
            [
                `x${"é".repeat(511)}`,
                /^the progress has 1025 bytes, the limit is 1024; report a number or a short text$/,
            ],
            [Number.NaN, /^the progress cannot be written as JSON: it is NaN; report/],
            ["\ud800", /surrogate/],
            [undefined, /^the progress cannot be written as JSON/],
            [new RawJson("{"), /^the progress is not JSON/],
        ] as const) {
            assert.throws(
                () => cx.progress(wrong),
                (error) => error instanceof InvalidProgress && why.test(error.message),
            );
        }
        assert.throws(() => cx.log(null as never), /log\(\) takes a string, not null/);
    });
    assert.equal(ran.assertDelivered().progress, "é".repeat(511));
    assert.deepEqual(ran.log, []);
});

test("a line of the log is cut between characters, and has less than 4 KiB", () => {
    for (const [text, kept] of [
        ["x".repeat(1000), "x".repeat(1000)],
        ["x".repeat(1001), "x".repeat(1000)],
        ["é".repeat(600), "é".repeat(500)],
        [`x${"é".repeat(600)}`, `x${"é".repeat(499)}`],
        [`x${"😀".repeat(300)}`, `x${"😀".repeat(249)}`],
        ['"'.repeat(1001), '"'.repeat(1000)],
        ["\x1b".repeat(2000), "\x1b".repeat(650)],
        ["a\ud800", "a\ufffd"],
    ] as const) {
        assert.equal(logText(text), kept);
        const line = { type: "log", batch: 2 ** 53, id: 2 ** 53, text: logText(text) };
        assert.ok(Buffer.byteLength(JSON.stringify(line)) < 4096);
    }
});

test("a run has its reports, whatever its outcome", async () => {
    const ran = await runOf((cx) => {
        cx.progress(1);
        cx.log("begins");
        cx.progress({ done: 2 });
        cx.log("x".repeat(1001));
        throw new Error("boom");
    });
    ran.assertFailed("boom");
    assert.deepEqual([ran.progress, ran.log], [{ done: 2 }, ["begins", "x".repeat(1000)]]);
    assert.throws(
        () => ran.assertDelivered(),
        /\n {2}log {8}begins\n {2}log {8}x+\n {2}progress {3}\{"done":2\}$/,
    );
    const silent = await runOf(() => undefined);
    assert.deepEqual([silent.progress, silent.log], [undefined, []]);
});

test("a handler that has ended reports nothing", async () => {
    let late: HandlerContext | undefined;
    const ran = await runOf((cx) => {
        late = cx;
    });
    const ended = (error: unknown) =>
        error instanceof HandlerEnded &&
        error.message === "the handler has ended; it must report before it ends";
    assert.throws(() => late?.progress(1), ended);
    assert.throws(() => late?.log("late"), ended);
    assert.deepEqual([ran.progress, ran.log], [undefined, []]);
});

/** The lines of a program behind its hello. */
const linesOf = (process: Process): Line[] => process.answers.slice(1);

test("a program writes the reports of a handler before its result", async (t) => {
    const process = program(
        t,
        `worker.on("t", async (event, cx) => {
             cx.log("begins");
             await new Promise((resolve) => setTimeout(resolve, event.ms));
             cx.progress(new RawJson('{"n":\\r\\n9007199254740993}'));
             cx.log("two\\nlines");
         });
         worker.on("rejected", (event, cx) => { cx.progress("no"); throw new Rejected("no"); });`,
    );
    process.send(batch(1, "a", [{ type: "t", ms: 0 }, { type: "t", ms: 5 }, { type: "rejected" }]));
    await until(() => linesOf(process).at(-1)?.type === "rejected", "the last result");
    assert.ok(process.stdout.includes('"value":{"n":  9007199254740993}'), process.stdout);
    let over = 99;
    const found: Record<number, unknown[]> = {};
    for (const { type, id, value, text } of linesOf(process)) {
        assert.ok(id > over, "no report comes behind the result");
        if (type === "ok" || type === "rejected") {
            over = id;
        } else {
            found[id] = [...(found[id] ?? []), text ?? value];
        }
    }
    assert.deepEqual(
        Object.values(found).map((reports) => reports.map((one) => JSON.stringify(one)).sort()),
        [0, 1].map(() => ['"begins"', '"two\\nlines"', '{"n":9007199254740992}']).concat([['"no"']]),
    );
});

for (const capabilities of [undefined, null, [], ["later"], "reports"]) {
    test(`a worker with the capabilities ${JSON.stringify(capabilities)} gets no reports`, async (t) => {
        const process = program(
            t,
            `worker.on("t", async (event, cx) => {
                 cx.log("begins");
                 await new Promise((resolve) => setTimeout(resolve, 5));
                 cx.progress(1);
             });`,
            { ...HELLO, capabilities },
        );
        process.send(batch(1, "a", [{ type: "t" }]));
        await until(() => linesOf(process).length > 0, "the result");
        assert.deepEqual(linesOf(process), [{ type: "ok", batch: 1, id: 100 }]);
    });
}

test("a report does not wait for the end of its handler", async (t) => {
    const process = program(
        t,
        `worker.on("t", async (event, cx) => {
             cx.progress(0.5);
             await new Promise((resolve) => cx.signal.addEventListener("abort", resolve));
             cx.progress("cancelled");
         });`,
    );
    process.send(batch(1, "a", [{ type: "t" }]));
    await until(() => linesOf(process).length === 1, "the first report");
    process.send({ type: "cancel", batch: 1, id: 100 });
    await until(() => linesOf(process).length === 3, "the result");
    assert.deepEqual(linesOf(process), [
        { type: "progress", batch: 1, id: 100, value: 0.5 },
        { type: "progress", batch: 1, id: 100, value: "cancelled" },
        { type: "cancelled", batch: 1, id: 100 },
    ]);
});

test("while the worker does not read, reports take the places of those before them", async (t) => {
    const process = program(
        t,
        `worker.on("t", async (event, cx) => {
             for (let n = 1; n <= 20_000; n += 1) {
                 cx.progress([n, "x".repeat(1000)]);
                 cx.log(String(n));
                 await new Promise((resolve) => setImmediate(resolve));
             }
             console.log("all is reported");
         });`,
    );
    await until(() => process.answers.length === 1, "the hello");
    process.output.pause();
    process.send(batch(1, "a", [{ type: "t" }]));
    await process.saw("all is reported");
    process.output.resume();
    await until(() => linesOf(process).at(-1)?.type === "ok", "the result");
    const lines = linesOf(process);
    const progress = lines.filter(({ type }) => type === "progress");
    const last = progress.at(-1)?.value as [number, string];
    assert.equal(last[0], 20_000);
    // A pipe has room for 64 KiB, and the streams of this test for some more.
    assert.ok(progress.length < 1000, `${progress.length} lines`);
    const texts = lines.filter(({ type }) => type === "log").map(({ text }) => text ?? "");
    assert.deepEqual(
        texts.slice(-100),
        Array.from({ length: 100 }, (_, at) => String(19_901 + at)),
    );
    const dropped = texts.filter((text) => text.includes(DROPPED)).map((text) => Number.parseInt(text, 10));
    assert.equal(dropped.reduce((sum, count) => sum + count, 0) + texts.length - dropped.length, 20_000);
});
