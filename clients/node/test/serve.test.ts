/** Tests programs that a worker starts: events and answers. */
import assert from "node:assert/strict";
import { test } from "node:test";
import { answers, batch, program } from "./serving.js";
import { until } from "./support.js";

test("a program says hello and answers the events of a batch", async (t) => {
    const process = program(t, `worker.on("t", () => {});`);
    process.send(batch(1, "a", [{ type: "t" }, { type: "t" }]));
    // Both events run in one turn, so there is one line for both.
    assert.deepEqual(await answers(process, 1), [{ type: "ok", batch: 1, id: 101 }]);
    const hello = process.answers[0];
    assert.match(hello.client, /^seriatim-node \d+\.\d+\.\d+/);
    assert.deepEqual({ ...hello, client: "" }, { type: "hello", protocol: 1, concurrency: 8, client: "" });
});

test("attempts, crashes and done subtasks belong to the first event of a batch", async (t) => {
    const process = program(
        t,
        `worker.on("t", async (event, cx) => {
             const once = await cx.once("x", () => "new");
             console.log("facts", cx.attempt, cx.crashes, once);
         });`,
    );
    process.send(
        batch(1, "a", [{ type: "t" }, { type: "t" }], { attempts: 2, crashes: 1, once: { x: "stored" } }),
    );
    await answers(process, 2);
    process.send({ type: "once", batch: 1, id: 101, name: "x" });
    await process.saw("facts 3 1 stored\nfacts 1 0 new");
});

test("each outcome has its line, and ends the batch", async (t) => {
    const process = program(
        t,
        `worker.on("transient", () => { throw new Transient("busy", { retryAfter: 1.5 }); });
         worker.on("rejected", () => { throw new Rejected("no"); });
         worker.on("unavailable", () => { throw new Unavailable("away"); });
         worker.on("postponed", () => { throw new Postponed(60_000, "later"); });
         worker.on("unknown", () => { throw new Unknown("new"); });
         worker.on("error", () => { throw new TypeError("é".repeat(600)); });
         worker.on("text", () => { throw "a text"; });
         worker.on("surrogate", () => { throw new Rejected("\\ud800\\nx"); });`,
    );
    const types = [
        "transient",
        "rejected",
        "unavailable",
        "postponed",
        "unknown",
        "error",
        "text",
        "surrogate",
        "none",
    ];
    types.forEach((type, at) => {
        process.send(batch(at + 1, `o${at}`, [{ type }, { type }]));
    });
    const long = `TypeError: ${"é".repeat(494)}`;
    const found = (await answers(process, types.length)) as { batch: number }[];
    assert.deepEqual(
        found.sort((a, b) => a.batch - b.batch),
        [
            { type: "transient", batch: 1, id: 100, error: "busy", retry_after_ms: 2 },
            { type: "rejected", batch: 2, id: 200, error: "no" },
            { type: "unavailable", batch: 3, id: 300, error: "away" },
            { type: "postponed", batch: 4, id: 400, error: "later", after_ms: 60_000 },
            { type: "unknown", batch: 5, id: 500, error: "new" },
            { type: "transient", batch: 6, id: 600, error: long },
            { type: "transient", batch: 7, id: 700, error: "a text" },
            { type: "rejected", batch: 8, id: 800, error: "\ufffd\nx" },
            {
                type: "unknown",
                batch: 9,
                id: 900,
                error: 'no handler is registered for events of type "none"',
            },
        ],
    );
    // An error that is no outcome has its stack in the log.
    await process.saw("TypeError");
});

test("stray output and the programs of handlers do not break the protocol", async (t) => {
    const process = program(
        t,
        `import { spawnSync } from "node:child_process";
         import { readFileSync, writeSync } from "node:fs";
         worker.on("t", () => {
             console.log("stray console");
             globalThis.process.stdout.write("stray stdout\\n");
             writeSync(1, "stray write\\n");
             spawnSync("sh", ["-c", "echo stray child; cat"], { stdio: "inherit" });
             if (readFileSync(0).length > 0) throw new Error("standard input is not empty");
         });`,
    );
    process.send(batch(1, "a", [{ type: "t" }]));
    assert.deepEqual(await answers(process, 1), [{ type: "ok", batch: 1, id: 100 }]);
    for (const stray of ["stray console", "stray stdout", "stray write", "stray child"]) {
        await until(() => process.stderr.includes(stray), `${stray} in ${process.stderr}`);
    }
});

test("effects are in the answer, which ends the batch, and line ends become blanks", async (t) => {
    const process = program(
        t,
        `worker.on("t", async (event, cx) => {
             cx.emit('b"1', new RawJson('{"n":\\n9007199254740993}'));
             cx.schedule("c", { x: 1 }, { after: 5, key: "k", keep: "first" });
             cx.schedule("c", 1, { at: new Date(7) });
             cx.cancel("d", "k");
             cx.result({ raw: cx.raw });
         });`,
    );
    process.send(batch(1, "a", [{ type: "t" }, { type: "t" }]));
    await answers(process, 1);
    const line = process.lines[1] ?? "";
    assert.ok(line.includes('{"object":"b\\"1","event":{"n": 9007199254740993}}'), line);
    const answer = JSON.parse(line);
    const made = answer.schedule[1].key;
    assert.match(made, /^-\d{13}-\d{12}-[0-9a-f]{16}$/);
    assert.deepEqual(answer.schedule, [
        { object: "c", event: { x: 1 }, key: "k", after_ms: 5, mode: "keep_first" },
        { object: "c", event: 1, key: made, at_ms: 7 },
    ]);
    assert.deepEqual(answer.cancel, [{ object: "d", key: "k" }]);
    assert.deepEqual(answer.result, { raw: '{"type":"t"}' });
    process.send(batch(2, "b", [{ type: "none" }]));
    const [, next] = (await answers(process, 2)) as { batch: number }[];
    assert.equal(next?.batch, 2, "the second event of the batch was not handled");
});

test("a worker without a token knows no emits, so a handler that emits fails", async (t) => {
    const process = program(t, `worker.on("t", (event, cx) => cx.emit("b", 1));`);
    process.send(batch(1, "a", [{ type: "t" }], { token: undefined }));
    const [answer] = (await answers(process, 1)) as { type: string; error: string }[];
    assert.equal(answer?.type, "transient");
    assert.match(answer?.error ?? "", /the program seriatim is too old for emits/);
});

test("subtasks are stored one at a time, and a done one is not run", async (t) => {
    const process = program(
        t,
        `worker.on("t", async (event, cx) => {
             const all = await Promise.all([
                 cx.once("done", () => { throw new Error("it is done"); }),
                 cx.once("one", () => ({ at: new Date(0) })),
                 cx.once("two", async () => undefined),
                 cx.once("one", () => "never"),
             ]);
             cx.result(all);
         });`,
    );
    process.send(batch(1, "a", [{ type: "t" }], { once: { done: [7] } }));
    assert.deepEqual(await answers(process, 1), [
        { type: "once", batch: 1, id: 100, name: "one", value: { at: "1970-01-01T00:00:00.000Z" } },
    ]);
    process.send({ type: "once", batch: 1, id: 100, name: "one" });
    assert.deepEqual((await answers(process, 2))[1], {
        type: "once",
        batch: 1,
        id: 100,
        name: "two",
        value: null,
    });
    process.send({ type: "once", batch: 1, id: 100, name: "two" });
    const one = { at: "1970-01-01T00:00:00.000Z" };
    assert.deepEqual((await answers(process, 3))[2], {
        type: "ok",
        batch: 1,
        id: 100,
        result: [[7], one, null, one],
    });
});

test("a subtask that cannot be stored fails the event", async (t) => {
    const process = program(t, `worker.on("t", async (event, cx) => { await cx.once("one", () => 1); });`);
    process.send(batch(1, "a", [{ type: "t" }, { type: "t" }]));
    await answers(process, 1);
    process.send({ type: "once", batch: 1, id: 100, name: "one", error: "no memory" });
    assert.deepEqual((await answers(process, 2))[1], {
        type: "transient",
        batch: 1,
        id: 100,
        error: "no memory",
    });
});

test("a subtask that its handler has not awaited does not stand in the way of the next event", async (t) => {
    const process = program(
        t,
        `worker.on("t", (event, cx) => { void cx.once("lost", () => 1); });
         worker.on("u", async (event, cx) => { await cx.once("next", () => 2); });`,
    );
    process.send(batch(1, "a", [{ type: "t" }, { type: "u" }]));
    const first = await answers(process, 1);
    // The line of the subtask comes before the answer of its event, or not at all.
    if (JSON.stringify(first).includes("lost")) {
        process.send({ type: "once", batch: 1, id: 100, name: "lost" });
    }
    await until(() => process.stdout.includes('"next"'), "the next subtask");
    process.send({ type: "once", batch: 1, id: 101, name: "next" });
    await until(
        () => process.answers.at(-1)?.type === "ok" && process.answers.at(-1)?.id === 101,
        "the last answer",
    );
});
