/** Kills processes and programs at random, and examines what has become of the events. */
import assert from "node:assert/strict";
import { execFile } from "node:child_process";
import { test } from "node:test";
import { pathToFileURL } from "node:url";
import { promisify } from "node:util";
import { Emitter } from "seriatim";
import { PACKAGE, type Process, Server, script, seriatim, until } from "./support.js";

const OBJECTS = 30;
const EVENTS = 25;
const KILLS = 8;

/** The handlers: each event is emitted onwards once, and no two handlers of an object may run at once. */
const PROGRAM = `
    import { Redis } from ${JSON.stringify(pathToFileURL(`${PACKAGE}node_modules/ioredis/built/index.js`).href)};
    import { setTimeout } from "node:timers/promises";
    const [url, name] = process.argv.slice(2);
    const redis = new Redis(url);
    const isAlive = (pid) => { try { process.kill(pid, 0); return true; } catch { return false; } };
    async function alone(cx, work) {
        const lock = "lock:" + cx.object;
        const holder = await redis.set(lock, process.pid, "GET");
        // The holder of a lock that was left behind is dead.
        if (holder !== null && (Number(holder) === process.pid || isAlive(Number(holder)))) {
            await redis.rpush("overlaps", cx.object + " " + holder + " " + process.pid);
        }
        try {
            await work();
        } finally {
            await redis.del(lock);
        }
    }
    const worker = new Worker(url, {
        name, concurrency: 4, lease: "1s", batch: 8, eventLog: true, retry: "fixed:10ms",
        args: ["--log", "error", "--crashes-max", "1000"], log: () => undefined,
    });
    worker.on("in", (event, cx) => alone(cx, async () => {
        await redis.rpush("seen:" + cx.object, event.n);
        await cx.once("step", () => redis.rpush("steps:" + cx.object, event.n));
        await setTimeout(5 + (event.n % 20));
        cx.emit("out:" + cx.object, { type: "out", n: event.n });
    }));
    worker.on("out", (event, cx) => alone(cx, async () => {}));
    const running = worker.run();
    console.log("runs");
    await running;
    redis.disconnect();
`;

/** Returns the process that another one has started, if there is one by now. */
async function childOf({ child }: Process): Promise<number | undefined> {
    const { stdout } = await promisify(execFile)("ps", ["-A", "-o", "pid=,ppid="]);
    const rows = stdout.split("\n").map((row) => row.trim().split(/\s+/).map(Number));
    return rows.find(([, parent]) => parent === child.pid)?.[0];
}

test("events survive kills: in order, one at a time, and each emit once", async (t) => {
    const program = seriatim();
    const server = await Server.start(t);
    const redis = server.client(t);
    const seed = Number(process.env.SERIATIM_SEED ?? Date.now() % 1_000_000);
    t.diagnostic(`seed ${seed} (SERIATIM_SEED)`);
    let state = seed;
    const random = (below: number) => {
        state = (Math.imul(state, 1_664_525) + 1_013_904_223) >>> 0;
        return Math.floor((state / 2 ** 32) * below);
    };
    await using em = new Emitter(server.url);
    function* events(): Generator<[string, unknown]> {
        for (let n = 0; n < EVENTS; n += 1) {
            for (let object = 0; object < OBJECTS; object += 1) {
                yield [`o${object}`, { type: "in", n }];
            }
        }
    }
    await em.emitMany(events());
    const names = ["one", "two", "three"];
    const start = (name: string): Process =>
        script(t, PROGRAM, { args: [server.url, name], env: { ...process.env, SERIATIM_BIN: program } });
    const total = 2 * OBJECTS * EVENTS;
    const running = new Map(names.map((name) => [name, start(name)]));
    for (let kill = 0; kill < KILLS; kill += 1) {
        const name = names[random(names.length)] as string;
        const wanted = (await redis.xlen("event.log")) + 1 + random(100);
        await until(
            async () => (await redis.xlen("event.log")) >= Math.min(wanted, total),
            "progress",
            60_000,
        );
        const victim = running.get(name) as Process;
        // Either this process dies, or the program that it has started.
        const program = random(2) === 0 ? await childOf(victim) : undefined;
        if (program === undefined) {
            victim.child.kill("SIGKILL");
        } else {
            process.kill(program, "SIGKILL");
        }
        await victim.ended;
        running.set(name, start(name));
    }
    await until(
        async () => (await redis.xlen("event.log")) >= total,
        () => `${total} rows in the log\n${[...running.values()].map(({ stderr }) => stderr).join("\n")}`,
        60_000,
    );
    for (const process of running.values()) {
        await process.saw("runs");
        process.child.kill("SIGTERM");
        assert.deepEqual(await process.ended, { code: 0, signal: null }, process.stderr);
    }
    assert.deepEqual(await redis.lrange("overlaps", "0", "-1"), [], "two handlers of an object at once");
    const order = Array.from({ length: EVENTS }, (_, n) => n);
    const rows = (await redis.xrange("event.log", "-", "+")).map(([, fields]) => {
        const at = (name: string) => fields[fields.indexOf(name) + 1] as string;
        return { object: at("object"), status: at("status"), n: JSON.parse(at("event")).n };
    });
    assert.equal(rows.length, total, "no emit is lost or doubled");
    for (let object = 0; object < OBJECTS; object += 1) {
        for (const name of [`o${object}`, `out:o${object}`]) {
            const mine = rows.filter((row) => row.object === name);
            assert.deepEqual(
                mine.map(({ n }) => n),
                order,
                name,
            );
            assert.ok(mine.every(({ status }) => status === "completed"));
        }
        const seen = (await redis.lrange(`seen:o${object}`, "0", "-1")).map(Number);
        assert.deepEqual([...new Set(seen)], order, "an event may come again, but in order");
        assert.deepEqual(
            seen.toSorted((a, b) => a - b),
            seen,
            "no event comes again behind a later one",
        );
    }
});
