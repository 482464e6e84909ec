/** Calls over a worker that is killed and started again: each gets its own result, and each event ends once. */
import assert from "node:assert/strict";
import { test } from "node:test";
import { Emitter } from "seriatim";
import { kill, Server, script, seriatim, until } from "./support.js";

const [WAITERS, CALLS, OBJECTS, KILLS] = [20, 10, 17, 2];
const TOTAL = WAITERS * CALLS;
const PATIENCE = 60_000;

test("200 calls at once get their own results, though the worker is killed twice", async (t) => {
    const server = await Server.start(t);
    const redis = server.client(t);
    const worker = () =>
        script(
            t,
            `import { setTimeout } from "node:timers/promises";
             const args = ["--lease", "500ms", "--crashes-max", "1000", "--log", "error"];
             const worker = new Worker(${JSON.stringify(server.url)}, { name: "w", concurrency: 8, eventLog: true, args });
             worker.on("double", async (event, cx) => {
                 await setTimeout(10);
                 cx.result(2 * event.n);
             });
             await worker.run();`,
            { env: { ...process.env, SERIATIM_BIN: seriatim() } },
        );
    let running = worker();
    const waiters = Array.from({ length: WAITERS }, async (_, waiter) => {
        await using em = new Emitter(server.url);
        const calls = Array.from({ length: CALLS }, async (_, call) => {
            const n = waiter * CALLS + call;
            const found = await em.call<number>(
                `a${n % OBJECTS}`,
                { type: "double", n },
                { timeout: PATIENCE },
            );
            assert.equal(found, 2 * n);
        });
        await Promise.all(calls);
    });
    const all = Promise.all(waiters);
    for (let died = 1; died <= KILLS; died += 1) {
        const goal = Math.floor((TOTAL * died) / (KILLS + 1));
        await until(
            async () => (await redis.xlen("event.log")) >= goal,
            `${goal} calls have ended`,
            PATIENCE,
        );
        assert.ok((await redis.xlen("event.log")) < TOTAL, "the kill comes in between");
        await kill(running.child);
        running = worker();
    }
    await all;
    const rows = (await redis.xrange("event.log", "-", "+")).map(([, fields]) => fields);
    const member = (row: string[], name: string) => row[row.indexOf(name) + 1] ?? "";
    assert.deepEqual(new Set(rows.map((row) => member(row, "status"))), new Set(["completed"]));
    const numbers = rows.map((row) => JSON.parse(member(row, "event")).n as number).sort((a, b) => a - b);
    assert.deepEqual(numbers, [...Array(TOTAL).keys()]);
});
