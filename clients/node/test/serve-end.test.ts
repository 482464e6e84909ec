/** Tests programs that a worker starts: cancels, the end, and lines that are wrong. */
import assert from "node:assert/strict";
import { test } from "node:test";
import { answers, batch, HELLO, program, SERVE } from "./serving.js";
import { script, until } from "./support.js";

test("a cancel aborts the signal, and is answered when the handler has ended", async (t) => {
    const process = program(
        t,
        `import { setTimeout } from "node:timers/promises";
         worker.on("t", async (event, cx) => {
             if (cx.cancelled) throw new Error("too early");
             console.log("began", cx.deadline > new Date());
             await setTimeout(60_000, undefined, { signal: cx.signal }).catch((error) => console.log("reason", cx.signal.reason.message, error.name));
             await setTimeout(200);
             console.log("ended", cx.cancelled);
         });`,
    );
    process.send(batch(1, "a", [{ type: "t" }, { type: "t" }]));
    await process.saw("began true");
    process.send({ type: "cancel", batch: 1, id: 100 });
    // It returns without an error, but its work is not done. So the event must come again.
    assert.deepEqual(await answers(process, 1), [{ type: "cancelled", batch: 1, id: 100 }]);
    assert.match(
        process.stderr,
        /reason the worker has asked to give up the event AbortError[\s\S]*ended true/,
    );
    // A cancel that has crossed the answer is ignored.
    process.send({ type: "cancel", batch: 1, id: 100 });
    process.send(batch(2, "a", [{ type: "none" }]));
    assert.equal((await answers(process, 2)).length, 2);
});

test("a cancel ends a subtask that waits for its reply, and a wait in a subtask", async (t) => {
    const process = program(t, `worker.on("t", async (event, cx) => { await cx.once("one", () => 1); });`);
    process.send(batch(1, "a", [{ type: "t" }]));
    await answers(process, 1);
    process.send({ type: "cancel", batch: 1, id: 100 });
    assert.deepEqual((await answers(process, 2))[1], { type: "cancelled", batch: 1, id: 100 });
});

test("handlers that never wait let the program read a cancel", async (t) => {
    const process = program(
        t,
        `worker.on("t", () => { const end = Date.now() + 30; while (Date.now() < end); });`,
    );
    const events = Array.from({ length: 99 }, () => ({ type: "t" }));
    process.send(batch(1, "a", events));
    const [first] = (await answers(process, 1)) as { id: number }[];
    assert.ok(first !== undefined && first.id < 198, "an answer comes before the end of the batch");
    // The ids of all events that may be in hand when the program reads this.
    for (let id = first.id + 1; id <= 198; id += 1) {
        process.send({ type: "cancel", batch: 1, id });
    }
    await until(() => process.answers.some(({ type }) => type === "cancelled"), "the answer to a cancel");
});

test("several objects run at the same time", async (t) => {
    const process = program(
        t,
        `const waiting = [];
         worker.on("t", async () => {
             const all = new Promise((resolve) => waiting.push(resolve));
             if (waiting.length === 8) waiting.forEach((go) => go());
             await all;
         });`,
    );
    for (let number = 1; number <= 8; number += 1) {
        process.send(batch(number, `o${number}`, [{ type: "t" }]));
    }
    assert.equal((await answers(process, 8)).length, 8);
});

test("unknown lines and members are ignored", async (t) => {
    const process = program(t, `worker.on("t", () => {});`);
    process.send({ type: "weather", sun: true });
    process.send(batch(1, "a", [{ type: "t" }], { mood: "good" }));
    assert.deepEqual(await answers(process, 1), [{ type: "ok", batch: 1, id: 100 }]);
});

test("the end of the input ends the process at once, while a handler runs", async (t) => {
    const process = program(
        t,
        `worker.on("t", async (event, cx) => {
             cx.signal.addEventListener("abort", () => console.log("aborted"));
             await new Promise((resolve) => setTimeout(resolve, 60_000));
         });`,
    );
    process.send(batch(1, "a", [{ type: "t" }]));
    process.send(batch(2, "b", [{ type: "none" }]));
    await answers(process, 1);
    const began = Date.now();
    process.stdin.end();
    assert.deepEqual(await process.ended, { code: 1, signal: null });
    assert.ok(Date.now() - began < 4000);
    assert.match(process.stderr, /aborted/);
    assert.match(process.stderr, /handlers go on after their cancel: event 100 of "a"/);
});

test("the end of the input kills a process whose handler blocks it", async (t) => {
    const process = program(t, `worker.on("t", () => { console.log("blocks"); for (;;); });`);
    process.send(batch(1, "a", [{ type: "t" }]));
    await process.saw("blocks");
    process.stdin.end();
    assert.deepEqual(await process.ended, { code: null, signal: "SIGKILL" });
});

test("a stop ends the process without an error, and SIGTERM does not end it", async (t) => {
    const process = program(t, `worker.on("t", () => {});`);
    process.send(batch(1, "a", [{ type: "t" }]));
    await answers(process, 1);
    process.child.kill("SIGTERM");
    process.send(batch(2, "a", [{ type: "t" }]));
    await answers(process, 2);
    process.send({ type: "stop", grace_ms: 5000 });
    process.stdin.end();
    assert.deepEqual(await process.ended, { code: 0, signal: null });
});

test("a worker that breaks the protocol, or speaks another version, is refused", async (t) => {
    for (const [line, why] of [
        [
            { ...HELLO, protocol: 2 },
            /speaks version 2 of the protocol, and this package speaks version 1; update the older one/,
        ],
        [batch(1, "a", [1]), /the first line of the worker is no hello/],
    ] as const) {
        const process = script(t, `${`const worker = new Worker(); worker.on("t", () => {});`}\n${SERVE}`, {
            pipes: true,
        });
        process.send(line);
        assert.deepEqual(await process.ended, { code: 1, signal: null });
        assert.match(process.stderr, why);
    }
    for (const [line, why] of [
        ["{", /it is no JSON/],
        ["[]", /it is no object/],
        [
            JSON.stringify({ ...batch(1, "a", [1]), batch: -1 }),
            /its member batch is no whole number below 2\^53/,
        ],
        [JSON.stringify(batch(1, "a", [])), /its member events is no list of events/],
        [
            '{"type":"batch","batch":1,"object":"a","events":[{"id":9007199254740993,"prev":0,"event":1}]}',
            /its member id/,
        ],
        [JSON.stringify(HELLO), /hello twice/],
    ] as const) {
        const process = program(t, `worker.on("t", () => {});`);
        process.stdin.write(`${line}\n`);
        assert.deepEqual(await process.ended, { code: 1, signal: null }, line);
        assert.match(process.stderr, why);
    }
    const bytes = program(t, `worker.on("t", () => {});`);
    bytes.stdin.write(Buffer.from([0x22, 0xff, 0x22, 0x0a]));
    assert.equal((await bytes.ended).code, 1);
    assert.match(bytes.stderr, /not UTF-8/);
});

test("a program without handlers, or without pipes, is refused", async (t) => {
    const none = script(t, "await new Worker().serve();");
    assert.equal((await none.ended).code, 1);
    assert.match(none.stderr, /the worker has no handler/);
    const file = script(
        t,
        `import { spawnSync } from "node:child_process";
         if (process.argv[2] === "inner") {
             const worker = new Worker();
             worker.on("t", () => {});
             await worker.serve();
         }
         console.log(spawnSync(process.execPath, [process.argv[1], "inner"], { stdio: ["ignore", "ignore", "pipe"] }).stderr.toString());`,
    );
    await file.ended;
    assert.match(file.stdout, /serve\(\) is for a program that a worker starts/);
});

test("an event of many MiB, and lines in small pieces, are read", async (t) => {
    const process = program(
        t,
        `worker.on("t", (event, cx) => cx.result([event.text.length, cx.raw.length]));`,
    );
    const text = "é".repeat(3 << 20);
    const line = Buffer.from(`${JSON.stringify(batch(1, "a", [{ type: "t", text }]))}\n`);
    process.stdin.write(line.subarray(0, 1001));
    await process.saw("hello");
    process.stdin.write(line.subarray(1001));
    const [answer] = (await answers(process, 1)) as { result: unknown }[];
    assert.deepEqual(answer?.result, [text.length, text.length + 22]);
});

test("an answer above the limit of a line fails the event", async (t) => {
    const process = script(
        t,
        `const worker = new Worker(); worker.on("t", (event, cx) => cx.emit("b", "x".repeat(5000)));\n${SERVE}`,
        { pipes: true },
    );
    process.send({ ...HELLO, line_bytes_max: 4096 });
    process.send(batch(1, "a", [{ type: "t" }]));
    const [answer] = (await answers(process, 1)) as { type: string; error: string }[];
    assert.equal(answer?.type, "transient");
    assert.match(answer?.error ?? "", /need a line of \d+ bytes, the limit is 4096/);
});
