/** Tests of awaited emits: waits at the same time, lost connections, rights, signals. */
import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { join, resolve } from "node:path";
import { type TestContext, test } from "node:test";
import type { Redis } from "ioredis";
import {
    type Awaited,
    EmitError,
    Emitter,
    EndRefused,
    EndTimedOut,
    EventFailed,
    Full,
    NotAwaitable,
    Refused,
    WaitClosed,
    WaitError,
} from "seriatim";
import { CLIENTS, Relay, Server, script, until } from "./support.js";

const PATIENCE = 20_000;

async function setUp(t: TestContext): Promise<{ server: Server; redis: Redis; em: Emitter }> {
    const server = await Server.start(t);
    const em = new Emitter(server.url);
    t.after(() => em.close());
    return { server, redis: server.client(t), em };
}

/** Returns the name of an awaited event of an object. */
async function nameOf(redis: Redis, object: string, prefix = ""): Promise<string> {
    const key = await until(
        async () => (await redis.keys(`${prefix}${object}\n*:event.end`))[0],
        `an awaited event of ${object}`,
    );
    return key.slice(`${prefix}${object}\n`.length, -":event.end".length);
}

/** Ends an event without a worker, as the step of a worker does. */
async function finish(
    redis: Redis,
    { object, name }: { object: string; name: string },
    end: object,
    { tells = true, prefix = "" } = {},
): Promise<void> {
    const key = `${prefix}${object}\n${name}:event.end`;
    const pending = await until(async () => (await redis.get(key)) ?? undefined, `${name} is awaited`);
    const inbox = pending.split(" ")[1] ?? "";
    await redis.set(key, JSON.stringify({ status: "completed", id: 7, attempts: 0, ...end }));
    if (tells && inbox !== "") {
        await redis.lpush(`${prefix}\n${inbox}:event.ends`, key);
    }
}

/** Returns the number of connections that wait for their inboxes. */
async function looking(redis: Redis): Promise<number> {
    const clients = String(await redis.call("CLIENT", ["LIST"])).split("\n");
    return clients.filter((line) => line.includes("cmd=blmpop")).length;
}

const begun = (redis: Redis) => until(async () => (await looking(redis)) === 1, "a wait has begun");
const over = (redis: Redis) => until(async () => (await looking(redis)) === 0, "the connection is closed");

test("a call returns the result of its handler, or throws how the event has ended", async (t) => {
    const { redis, em } = await setUp(t);
    for (const [end, wanted] of [
        [{ results: { pay: { receipt: 7 } } }, { receipt: 7 }],
        [{}, undefined],
        [{ results: { pay: null } }, null],
        [{ results: { a: 1, b: 2 } }, { a: 1, b: 2 }],
    ] as const) {
        await redis.flushall();
        const call = em.call("a", { type: "t" }, { timeout: PATIENCE });
        await finish(redis, { object: "a", name: await nameOf(redis, "a") }, end);
        assert.deepEqual(await call, wanted);
    }
    await redis.flushall();
    const call = assert.rejects(em.call("a", 1), (error: EventFailed) => {
        assert.ok(error instanceof EventFailed);
        assert.match(error.message, /^event "-.*" of a is dead: no card$/);
        const { status, id, error: text, attempts, results, result } = error.end;
        assert.deepEqual(
            [status, id, text, attempts, results, result],
            ["dead", 7, "no card", 3, { m: 1 }, 1],
        );
        assert.equal(error.object, "a");
        return true;
    });
    const end = { status: "dead", error: "no card", attempts: 3, results: { m: 1 } };
    await finish(redis, { object: "a", name: await nameOf(redis, "a") }, end);
    await call;
});

test("an awaited emit has a name, and its end can be awaited again and elsewhere", async (t) => {
    const { server, redis, em } = await setUp(t);
    await using other = new Emitter(server.url);
    const options = { awaited: true, idempotencyKey: "k", keep: 120_000 } as const;
    const awaited = await em.emit("a", 1, options);
    const { name, object, events, queued, repeated } = awaited;
    assert.deepEqual([name, object, events, queued, repeated], ["k", "a", 1, 1, false]);
    await assert.rejects(awaited.wait(200), (error: EndTimedOut) => {
        assert.ok(error instanceof EndTimedOut && error instanceof WaitError);
        assert.match(
            error.message,
            /^no end of event "k" of a after 200 ms: wait again, or look at the object/,
        );
        assert.deepEqual([error.kind, error.eventName, error.timeout], ["timed_out", "k", 200]);
        assert.equal(error.unreachable, undefined);
        return true;
    });
    await finish(redis, awaited, { results: { t: 2 ** 53 } });
    const again = await other.emit("a", 1, options);
    assert.equal(again.repeated, true);
    assert.deepEqual(
        await Promise.all([awaited.wait(), awaited.wait(), again.wait()]),
        Array(3).fill(2 ** 53),
    );
    const end = await other.endOf("a", "k");
    assert.deepEqual(end, await awaited.end());
    assert.match(end.raw, /"results":\{"t":9007199254740992\}/);
});

test("many waits share one connection, which ends with them", async (t) => {
    const server = await Server.start(t);
    const [relay, redis] = [await Relay.start(t, server), server.client(t)];
    await using em = new Emitter(relay.url);
    const awaited: Awaited[] = [];
    for (let n = 0; n < 300; n += 1) {
        awaited.push(await em.emit(`a${n % 7}`, n, { awaited: true }));
    }
    const waits = awaited.map((one) => one.wait<number>(PATIENCE));
    await begun(redis);
    assert.equal(relay.connections, 2);
    for (const [n, one] of awaited.entries()) {
        // Every second end is not told, as if its entry were lost.
        await finish(redis, one, { results: { t: n } }, { tells: n % 2 === 0 });
    }
    assert.deepEqual(await Promise.all(waits), [...awaited.keys()]);
    await until(() => relay.open === 1, "only the connection of the emits is left");
    // An end that is there comes at once, also one after another.
    const began = performance.now();
    for (const [n, one] of awaited.entries()) {
        assert.equal(await one.wait(PATIENCE), n);
    }
    assert.ok(performance.now() - began < 15_000, "no wait takes a whole round");
    assert.equal(relay.connections, 3);
});

test("an end that is told is taken from the inbox", async (t) => {
    const { redis, em } = await setUp(t);
    const control = new AbortController();
    const never = assert.rejects(em.endOf("b", "k", PATIENCE, control), { name: "AbortError" });
    for (let n = 0; n < 10; n += 1) {
        const awaited = await em.emit("a", n, { awaited: true });
        const wait = awaited.wait(PATIENCE);
        await finish(redis, awaited, { results: { t: n } });
        assert.equal(await wait, n);
    }
    await until(async () => (await redis.keys("*:event.ends")).length === 0, "the inbox is empty");
    control.abort();
    await never;
});

test("a process without waits can exit after close", async (t) => {
    const { server } = await setUp(t);
    const first = script(
        t,
        `const em = new Emitter(${JSON.stringify(server.url)});
         await em.endOf("a", "k", 150).catch((error) => console.log(error.name));
         const wait = em.endOf("a", "k", 60_000).catch((error) => console.log(error.name));
         await em.close();
         await wait;
         const closed = performance.now();
         process.on("exit", () => console.log(performance.now() - closed < 1500 ? "soon" : "late"));`,
    );
    assert.equal((await first.ended).code, 0);
    assert.deepEqual(first.lines, ["EndTimedOut", "WaitClosed", "soon"]);
});

test("a client with time limits of its own does not break a wait", async (t) => {
    const { server, redis, em } = await setUp(t);
    const client = server.client(t, { commandTimeout: 20, socketTimeout: 20, keyPrefix: "mine:" });
    await using other = new Emitter(client);
    const awaited = await em.emit("a", 1, { awaited: true });
    await assert.rejects(other.endOf("a", awaited.name, 300), (error: EndTimedOut) => {
        assert.equal(error.unreachable, undefined);
        return true;
    });
    const wait = other.endOf("a", awaited.name, PATIENCE);
    await finish(redis, awaited, { results: { t: 1 } });
    assert.equal((await wait).result, 1);
});

test("an awaited emit whose reply is lost is repeated, and queued once", async (t) => {
    const server = await Server.start(t);
    const [relay, redis] = [await Relay.start(t, server), server.client(t)];
    await using em = new Emitter(relay.url);
    await em.emit("other", 1, { idempotencyKey: "k" });
    relay.passesReplies = false;
    const call = em.call("a", 1, { timeout: PATIENCE });
    const name = await nameOf(redis, "a");
    relay.cut();
    relay.passesReplies = true;
    await finish(redis, { object: "a", name }, { results: { t: 1 } });
    assert.equal(await call, 1);
    assert.equal(await redis.llen("a:events"), 1);
});

test("a wait goes on after a lost connection and a restart of Redis", async (t) => {
    const server = await Server.start(t, "--appendonly", "yes", "--appendfsync", "always");
    const [relay, redis] = [await Relay.start(t, server), server.client(t)];
    await using em = new Emitter(relay.url);
    const awaited = await em.emit("a", 1, { awaited: true });
    const wait = awaited.wait(PATIENCE);
    await begun(redis);
    relay.cut();
    await begun(redis);
    await server.kill();
    await assert.rejects(awaited.wait(1000), (error: EndTimedOut) => {
        assert.ok(error.unreachable instanceof Error);
        assert.match(error.message, /after 1000 ms \(.+\): wait again/);
        return true;
    });
    await server.restart();
    const fresh = server.client(t, { maxRetriesPerRequest: null });
    await finish(fresh, awaited, { results: { t: 1 } });
    assert.equal(await wait, 1);
});

test("a signal ends a wait, but not the event", async (t) => {
    const { redis, em } = await setUp(t);
    const awaited = await em.emit("a", 1, { awaited: true });
    const control = new AbortController();
    const other = awaited.wait(PATIENCE);
    const aborted = [
        awaited.wait(PATIENCE, control),
        em.endOf("b", "k", PATIENCE, control),
        em.call("c", 1, control),
    ].map((wait) => assert.rejects(wait, /enough/));
    await nameOf(redis, "c");
    await begun(redis);
    control.abort(new Error("enough"));
    await Promise.all(aborted);
    await assert.rejects(em.call("d", 1, control), /enough/);
    await finish(redis, awaited, { results: { t: 1 } });
    assert.equal(await other, 1);
    assert.equal(await redis.llen("c:events"), 1);
    assert.equal(await redis.exists("d:events"), 0);
    await over(redis);
});

test("a closed emitter ends its waits", async (t) => {
    const { redis, em } = await setUp(t);
    const awaited = await em.emit("a", 1, { awaited: true, idempotencyKey: "k" });
    const waits = [awaited.wait(PATIENCE), em.call("a", 2)].map((wait) => assert.rejects(wait, WaitClosed));
    await until(async () => (await redis.llen("a:events")) === 2, "both are queued");
    await begun(redis);
    await em.close();
    await Promise.all(waits);
    await assert.rejects(
        awaited.wait(PATIENCE),
        /closed during a wait for event "k" of a; wait again with another/,
    );
    await over(redis);
});

test("what cannot be awaited is refused before anything is sent", async (t) => {
    const { redis, em } = await setUp(t);
    for (const more of [{ subevents: [2] }, { data: 2 }]) {
        const options = { awaited: true, ...more } as const;
        await assert.rejects(em.emit("a", 1, options), (error: NotAwaitable) => {
            assert.ok(error instanceof NotAwaitable && error instanceof EmitError && !error.isUnknown);
            return true;
        });
    }
    const wrong: object[] = [
        { awaited: true, window: 60_000 },
        { idempotencyKey: "k", keep: 60_000 },
        { awaited: true, keep: 0 },
    ];
    for (const options of wrong) {
        await assert.rejects(em.emit("a", 1, options), TypeError);
    }
    for (const timeout of [0, -1, Number.NaN]) {
        await assert.rejects(em.call("a", 1, { timeout }), /timeout is .*; it is a number above 0/);
        await assert.rejects(em.endOf("a", "k", timeout), TypeError);
    }
    await redis.hset("event.limits", "*", '{"queued_max":1}');
    await using limited = new Emitter({ path: redis.options.path as string });
    await limited.emit("a", 1);
    await assert.rejects(limited.call("a", 1), Full);
    assert.deepEqual(await redis.keys("*event.end"), []);
});

test("the rights of the protocol are enough, and a refusal ends a wait", async (t) => {
    const server = await Server.start(t);
    const redis = server.client(t);
    const user = async (name: string, namespace: string, ...rules: string[]) => {
        await redis.call("ACL", ["SETUSER", name, "reset", "on", ">p", ...rules]);
        return new Emitter({ path: server.path, username: name, password: "p" }, { namespace });
    };
    const protocol = readFileSync(join(resolve(CLIENTS, ".."), "docs", "protocol.md"), "utf8");
    const [, line = ""] = /ACL SETUSER awaiter on >PASSWORD (.*)/.exec(protocol) ?? [];
    await using em = await user("awaiter", "shop", ...(line.match(/\([^)]*\)|\S+/g) ?? []));
    const awaited = await em.emit("a", 1, { awaited: true });
    const wait = awaited.wait(PATIENCE);
    await finish(redis, awaited, { results: { t: 1 } }, { prefix: "{shop:0}:" });
    assert.equal(await wait, 1);
    await using elsewhere = new Emitter(
        { path: server.path, username: "awaiter", password: "p" },
        { namespace: "x" },
    );
    await assert.rejects(elsewhere.call("a", 1), Refused);
    await using blind = await user("blind", "shop", "~*", "+@all", "-mget");
    await assert.rejects(blind.endOf("a", "k", PATIENCE), (error: EndRefused) => {
        assert.ok(error instanceof EndRefused);
        assert.match(error.message, /^Redis refuses to tell the end of event "k" of a: NOPERM/);
        return true;
    });
    await using without = await user("without", "shop", "~*", "+@all", "-blmpop");
    const second = await without.emit("a", 2, { awaited: true });
    const found = second.wait(PATIENCE);
    await finish(redis, second, { results: { t: 2 } }, { prefix: "{shop:0}:" });
    assert.equal(await found, 2);
});
