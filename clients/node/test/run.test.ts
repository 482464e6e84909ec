/** Tests of `run` and `serve` with the program `seriatim`, a real Redis, and real kills. */
import assert from "node:assert/strict";
import { execFile, execFileSync } from "node:child_process";
import { type TestContext, test } from "node:test";
import { promisify } from "node:util";
import type { Redis } from "ioredis";
import { Emitter } from "seriatim";
import { Process, pidOf, Server, script, seriatim, until } from "./support.js";

const run = promisify(execFile);

/** A program with a worker, whose handlers write lines to standard output. */
function program(t: TestContext, server: Server, options: object, handlers: string): Process {
    const settings = { lease: "1s", retry: "fixed:10ms,jitter=0", args: ["--log", "warn"], ...options };
    return script(
        t,
        `import { setTimeout } from "node:timers/promises";
         const worker = new Worker(${JSON.stringify(server.url)}, ${JSON.stringify(settings)});
         ${handlers}
         await worker.run();
         console.log("run is over");`,
        { env: { ...process.env, SERIATIM_BIN: seriatim() } },
    );
}

function isAlive(pid: number): boolean {
    try {
        process.kill(pid, 0);
        return true;
    } catch {
        return false;
    }
}

async function setUp(t: TestContext): Promise<{ server: Server; redis: Redis; em: Emitter }> {
    const server = await Server.start(t);
    const em = new Emitter(server.url);
    t.after(() => em.close());
    return { server, redis: server.client(t), em };
}

test("SIGTERM finishes the event in hand, and leaves no lease", async (t) => {
    const { server, redis, em } = await setUp(t);
    await em.emit("a", { type: "t" });
    const handlers = `worker.on("t", async (event, cx) => {
        console.log("began", cx.id);
        await setTimeout(500);
        cx.emit("b", { type: "next" });
        console.log("ended", cx.cancelled);
    });`;
    const first = program(t, server, { name: "w" }, handlers);
    await first.saw("began");
    const pid = await pidOf(redis, "w");
    const group = execFileSync("ps", ["-o", "pgid=", "-p", String(pid)], { encoding: "utf8" });
    assert.equal(Number(group), pid, "a Ctrl-C on the terminal does not reach the program");
    first.child.kill("SIGTERM");
    assert.deepEqual(await first.ended, { code: 0, signal: null });
    assert.match(first.stdout, /ended false\nrun is over\n$/);
    assert.equal(await redis.exists("event.worker:w:lease"), 0);
    assert.equal(isAlive(pid), false);
    assert.deepEqual(await redis.lrange("b:events", "0", "-1"), ['{"type":"next"}']);
});

test("an operator sees the reports of a handler while it runs", async (t) => {
    const { server, redis, em } = await setUp(t);
    await em.emit("a", { type: "t" });
    const handlers = `worker.on("t", async (event, cx) => {
        cx.progress({ done: 1, of: 2 });
        cx.log("half of it is done");
        await new Promise((resolve) => process.stdin.once("data", resolve));
        process.stdin.unref();
    });`;
    const options = { name: "w", eventLog: true, args: ["--log", "info"] };
    const first = program(t, server, options, handlers);
    const inspect = async () =>
        (await run(seriatim(), ["inspect", "--redis", server.url, "a"], { encoding: "utf8" })).stdout;
    await until(async () => (await inspect()).includes('{"done":1,"of":2}'), "the progress");
    assert.ok((await inspect()).includes("half of it is done"));
    await first.saw("half of it is done");
    first.stdin.write("go\n");
    await until(async () => (await redis.xlen("event.log")) === 1, "the event is over");
    await until(async () => (await redis.exists("event.worker:w:reports")) === 0, "no report is left");
    assert.ok(!(await inspect()).includes('"done"'));
    first.child.kill("SIGTERM");
    assert.deepEqual(await first.ended, { code: 0, signal: null });
});

test("a second Ctrl-C cancels the handlers at once, and their event comes again", async (t) => {
    const { server, redis, em } = await setUp(t);
    await em.emit("a", { type: "t" });
    const first = program(
        t,
        server,
        { name: "w" },
        `worker.on("t", async (event, cx) => {
            console.log("began", cx.id);
            await setTimeout(60_000, undefined, { signal: cx.signal }).finally(() => console.log("cancelled", cx.cancelled));
        });`,
    );
    await first.saw("began");
    const began = Date.now();
    first.child.kill("SIGINT");
    await first.saw("a second signal stops at once");
    first.child.kill("SIGINT");
    assert.equal((await first.ended).code, 0);
    assert.equal(await redis.exists("event.worker:w:lease"), 0, "the worker has given its objects to others");
    assert.ok(Date.now() - began < 15_000, "it does not wait for the grace of 25 s");
    assert.match(first.stdout, /cancelled true\nrun is over/);
    const second = program(
        t,
        server,
        { name: "w" },
        `worker.on("t", (event, cx) => { console.log("again", cx.id); });`,
    );
    await second.saw("again");
    assert.equal(/began (\d+)/.exec(first.stdout)?.[1], /again (\d+)/.exec(second.stdout)?.[1]);
});

test("the death of the program cancels all handlers, and is an error", async (t) => {
    const { server, redis, em } = await setUp(t);
    await em.emit("a", { type: "t" });
    await em.emit("b", { type: "t" });
    const first = program(
        t,
        server,
        { name: "w" },
        `worker.on("t", async (event, cx) => {
            console.log("began", cx.object);
            await setTimeout(60_000, undefined, { signal: cx.signal }).finally(() => console.log("cancelled", cx.object));
        });`,
    );
    await first.saw("began a");
    await first.saw("began b");
    process.kill(await pidOf(redis, "w"), "SIGKILL");
    assert.equal((await first.ended).code, 1);
    assert.match(first.stdout, /cancelled a/);
    assert.match(first.stdout, /cancelled b/);
    assert.match(
        first.stderr,
        /WorkerEnded: .*seriatim was killed by signal 9 \(e\.g\. out of memory, or an operator\); its handlers were cancelled, and their events come again/,
    );
});

test("a handler that goes on after the death of the program ends the process, also if it blocks", async (t) => {
    for (const [handler, end] of [
        ["await setTimeout(60_000);", { code: 1, signal: null }],
        ["for (;;);", { code: null, signal: "SIGKILL" }],
    ] as const) {
        const { server, redis, em } = await setUp(t);
        await em.emit("a", { type: "t" });
        const first = program(
            t,
            server,
            { name: "w" },
            `worker.on("t", async () => { console.log("began"); ${handler} });`,
        );
        await first.saw("began");
        process.kill(await pidOf(redis, "w"), "SIGKILL");
        assert.deepEqual(await first.ended, end);
    }
});

test("the death of a process ends its worker, and another process gets the event again", async (t) => {
    const { server, redis, em } = await setUp(t);
    await em.emit("a", { type: "t" });
    await em.emit("a", { type: "u" });
    const first = program(
        t,
        server,
        { name: "one" },
        `worker.on("t", async (event, cx) => {
            await cx.once("charge", () => { console.log("charged"); return 7; });
            cx.emit("b", { lost: true });
            console.log("began", cx.id);
            await setTimeout(60_000);
        });`,
    );
    await first.saw("began");
    const pid = await pidOf(redis, "one");
    first.child.kill("SIGKILL");
    await first.ended;
    await until(() => !isAlive(pid), "the worker of a dead process ends");
    const second = program(
        t,
        server,
        { name: "two" },
        `worker.on("t", async (event, cx) => {
            const charge = await cx.once("charge", () => { throw new Error("charged twice"); });
            console.log("again", cx.id, charge, cx.attempt, cx.crashes);
            cx.emit("b", { paid: charge });
        });
        worker.on("u", (event, cx) => { console.log("next", cx.prev); });
        worker.onOther((event) => { console.log("emitted", JSON.stringify(event)); });`,
    );
    await second.saw("next");
    await second.saw("emitted");
    const id = /began (\d+)/.exec(first.stdout)?.[1];
    assert.match(second.stdout, new RegExp(`again ${id} 7 1 1\n`));
    assert.match(second.stdout, new RegExp(`next ${id}\n`));
    assert.deepEqual(
        second.lines.filter((line) => line.startsWith("emitted")),
        ['emitted {"paid":7}'],
    );
});

test("a handler that ignores a cancel does not hold up the worker for ever", async (t) => {
    const { server, em } = await setUp(t);
    await em.emit("a", { type: "t" });
    const first = program(
        t,
        server,
        { name: "w", timeout: 200 },
        `worker.on("t", async (event, cx) => {
            cx.signal.addEventListener("abort", () => console.log("asked"));
            console.log("began");
            await new Promise(() => setTimeout(600_000));
        });`,
    );
    await first.saw("asked");
    // The worker waits 5 s for the answer to its cancel.
    assert.equal((await first.ended).code, 1);
    assert.match(first.stderr, /handlers go on after their cancel: event \d+ of "a"/);
});

test("a handler that takes too long is cancelled, and its event comes again", async (t) => {
    const { server, em } = await setUp(t);
    await em.emit("a", { type: "t" });
    const first = program(
        t,
        server,
        { name: "w", timeout: "200ms" },
        `worker.on("t", async (event, cx) => {
            console.log("attempt", cx.attempt);
            if (cx.attempt === 1) await setTimeout(60_000, undefined, { signal: cx.signal });
            worker.stop();
        });`,
    );
    assert.equal((await first.ended).code, 0);
    assert.match(first.stdout, /attempt 1\nattempt 2\nrun is over/);
});

test("several processes share the work, and a dead one starts again", async (t) => {
    const { server, redis, em } = await setUp(t);
    const first = program(
        t,
        server,
        { name: "w", processes: 2, concurrency: 1 },
        `worker.on("t", async (event, cx) => { console.log("handled", process.pid); await setTimeout(20); });
         worker.on("die", (event, cx) => { if (cx.crashes === 0) process.exit(9); });`,
    );
    const pids = await Promise.all([pidOf(redis, "w-0"), pidOf(redis, "w-1")]);
    assert.notEqual(pids[0], pids[1]);
    const work = async () => {
        await Promise.all(Array.from({ length: 50 }, (_, n) => em.emit(`o:${n}`, { type: "t" })));
    };
    await work();
    await until(
        () => first.lines.length === 50,
        () => `50 events in ${first.stdout} ${first.stderr}`,
    );
    assert.equal(new Set(first.lines).size, 2, "both processes have handled events");
    await em.emit("d", { type: "die" });
    await first.saw("ended with exit code 9; it starts again in 100 ms");
    await until(async () => {
        const now = await Promise.all([pidOf(redis, "w-0"), pidOf(redis, "w-1")]);
        return now.some((pid) => !pids.includes(pid)) && now;
    }, "a new worker");
    first.child.kill("SIGTERM");
    assert.equal((await first.ended).code, 0);
    assert.match(first.stdout, /run is over/);
    assert.equal(await redis.exists("event.worker:w-0:lease", "event.worker:w-1:lease"), 0);
});

test("processes end with their parent", async (t) => {
    const { server, redis } = await setUp(t);
    const first = program(t, server, { name: "w", processes: 2 }, `worker.on("t", () => {});`);
    const pids = await Promise.all([pidOf(redis, "w-0"), pidOf(redis, "w-1")]);
    first.child.kill("SIGKILL");
    await until(() => pids.every((pid) => !isAlive(pid)), "the workers end");
    await first.ended;
});

test("processes whose worker cannot start are an error", async (t) => {
    const { server } = await setUp(t);
    const first = program(t, server, { processes: 2, retry: "never" }, `worker.on("t", () => {});`);
    assert.equal((await first.ended).code, 1);
    assert.match(first.stderr, /ProcessEnded: the process \d ended with exit code 1 before its worker ran/);
});

test("a program is served by a worker with the sink exec", async (t) => {
    const { server, redis, em } = await setUp(t);
    await em.emit("a", { type: "t", n: 1 });
    const inner = script(
        t,
        `const worker = new Worker();
         worker.on("t", async (event, cx) => {
             console.log("stray");
             const n = await cx.once("n", () => event.n + 1);
             if (cx.attempt === 1) throw new Transient("busy", { retryAfter: 10 });
             cx.emit("b", { n });
             cx.result(n);
         });
         worker.onOther(() => {});
         await worker.serve();`,
    );
    const file = inner.child.spawnargs[1] ?? "";
    const args = [
        "worker",
        "--redis",
        server.url,
        "--sink",
        `exec:${process.execPath} ${file}`,
        "--event-log",
        "--name",
        "w",
    ];
    const worker = new Process(t, seriatim(), args);
    await until(
        async () => (await redis.xlen("event.log")) === 2,
        () => `rows in the log: ${worker.stderr}`,
    );
    assert.match(JSON.stringify(await redis.xrange("event.log", "-", "+")), /"event","\{\\"n\\":2\}"/);
    assert.match(JSON.stringify(await redis.xrange("event.log", "-", "+")), /"results","\{\\"[a-z]+\\":2\}"/);
    assert.match(worker.stderr, /stray/);
    worker.child.kill("SIGTERM");
    assert.deepEqual(await worker.ended, { code: 0, signal: null });
});
