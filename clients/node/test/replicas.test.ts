/** Tests of the wait for replicas, with a master and a replica. */
import assert from "node:assert/strict";
import { once } from "node:events";
import { createServer } from "node:net";
import { type TestContext, test } from "node:test";
import type { Redis } from "ioredis";
import { Emitter, OutcomeUnknown, ScheduleManyError, Unconnected, Unreplicated } from "seriatim";
import { ReplicaWait } from "../dist/emit/replicas.js";
import { Server, until } from "./support.js";

async function freePort(): Promise<string> {
    const listener = createServer().listen(0, "127.0.0.1");
    await once(listener, "listening");
    const { port } = listener.address() as { port: number };
    listener.close();
    await once(listener, "close");
    return String(port);
}

interface Pair {
    readonly url: string;
    readonly redis: Redis;
    readonly replica: Server;
    readonly replicaRedis: Redis;
}

/** Starts a master with one replica. */
async function pair(t: TestContext): Promise<Pair> {
    const port = await freePort();
    const settings = ["--repl-diskless-sync-delay", "0", "--repl-timeout", "600"];
    const master = await Server.start(t, "--port", port, ...settings);
    const replica = await Server.start(t, "--replicaof", "127.0.0.1", port);
    const redis = master.client(t);
    await until(async () => {
        await redis.set("touched", 1);
        return (await redis.wait(1, 100)) === 1;
    }, "the replica has a write");
    await redis.del("touched");
    return { url: master.url, redis, replica, replicaRedis: replica.client(t) };
}

async function waits(redis: Redis): Promise<number> {
    const stats = await redis.info("commandstats");
    return Number(/cmdstat_wait:calls=(\d+)/.exec(stats)?.[1] ?? 0);
}

test("every call waits until a replica has it, and calls together share waits", async (t) => {
    const { url, redis, replicaRedis } = await pair(t);
    await using em = new Emitter(url, { wait: 1, waitTimeout: 20_000 });
    // The first call of a script sends its text, too.
    await em.emit("a", 1, { idempotencyKey: "first" });
    const begin = await waits(redis);
    assert.equal((await em.emit("a", 2)).queued, 2);
    assert.equal((await em.emit("a", 3, { idempotencyKey: "k" })).queued, 3);
    await em.emitMany([
        ["a", 4],
        ["b", 5],
    ]);
    assert.equal((await em.schedule("a", 6, { at: 4e12, key: "k" })).change, "new");
    await em.scheduleMany([
        ["a", 7, { at: 4e12, key: "l" }],
        ["a", 8, { at: 4e12, key: "m" }],
    ]);
    assert.equal(await em.cancel("a", "k"), "cancelled");
    assert.equal((await waits(redis)) - begin, 6, "each of the calls waits once");
    assert.equal(await replicaRedis.llen("a:events"), 4);
    assert.deepEqual(await replicaRedis.hkeys("a:events.scheduled"), ["l", "m"]);

    const before = await waits(redis);
    await Promise.all(Array.from({ length: 256 }, (_, n) => em.emit(`c:${n}`, n)));
    const shared = (await waits(redis)) - before;
    assert.ok(shared <= 4, `${shared} waits`);
});

test("an emit that too few replicas have is there", async (t) => {
    const { url, redis } = await pair(t);
    // The time limit for a reply is shorter than the wait.
    await using em = new Emitter(url, { wait: 2, waitTimeout: 500, replyTimeout: 200 });
    const began = performance.now();
    const emits = await Promise.allSettled([em.emit("a", 1), em.emit("a", 2), em.emit("b", 3)]);
    assert.ok(performance.now() - began < 1200, "they share a wait");
    for (const emit of emits) {
        const error = emit.status === "rejected" && (emit.reason as Unreplicated);
        assert.ok(error instanceof Unreplicated, String(error));
        const { reached, wanted, notLocal, isUnknown, kind } = error;
        assert.deepEqual([reached, wanted, notLocal, isUnknown, kind], [1, 2, false, true, "unreplicated"]);
        assert.match(error.message, /^the emit for [ab] is queued on the master, but only 1 of 2 replicas/);
    }
    // Behind a wait under way, too.
    const first = assert.rejects(em.emit("c", 1), Unreplicated);
    await until(async () => (await redis.llen("c:events")) === 1, "the first is queued");
    await Promise.all([first, assert.rejects(em.emit("c", 2), Unreplicated)]);
    const many = em.scheduleMany([["a", 2, { at: 4e12, key: "k" }]]);
    await assert.rejects(
        many,
        (error) => error instanceof ScheduleManyError && error.isUnknown && error.scheduled.length === 0,
    );
    assert.deepEqual(await redis.lrange("a:events", 0, -1), ["2", "1"]);
    assert.deepEqual({ ...(await redis.hgetall("a:events.scheduled")) }, { k: "2" });
});

test("the error of a call names its event", async (t) => {
    const { url, redis } = await pair(t);
    await using em = new Emitter(url, { wait: 2, waitTimeout: 10 });
    const failed = await em.call("a", 1).catch((error: unknown) => error);
    assert.ok(failed instanceof Unreplicated, String(failed));
    assert.deepEqual(await redis.hkeys("events.emitted"), [`a\n${failed.eventName}`]);
    const other = await em.emit("a", 1).catch((error: unknown) => error);
    assert.ok(other instanceof Unreplicated && other.eventName === undefined);
});

/** A repeated emit writes nothing, and a wait covers only the writes of its own connection. */
test("a repeated emit waits for the first one", async (t) => {
    const { url, redis, replica } = await pair(t);
    await using first = new Emitter(url);
    await using second = new Emitter(url, { wait: 1, waitTimeout: 100 });
    await using third = new Emitter(url, { wait: 1, waitTimeout: 20_000 });
    replica.signal("SIGSTOP");
    try {
        await first.emit("a", 1, { idempotencyKey: "k" });
        await assert.rejects(second.emit("a", 1, { idempotencyKey: "k" }), Unreplicated);
    } finally {
        replica.signal("SIGCONT");
    }
    assert.ok((await third.emit("a", 1, { idempotencyKey: "k" })).repeated);
    assert.equal(await redis.llen("a:events"), 1);
});

test("the timeouts of the caller's client do not end a wait", async (t) => {
    const { url, redis } = await pair(t);
    const client = redis.duplicate({ commandTimeout: 100, socketTimeout: 100 });
    t.after(() => client.disconnect());
    await using em = new Emitter(client, { wait: 2, waitTimeout: 400 });
    await assert.rejects(em.emit("a", 1), Unreplicated);
    await using small = new Emitter(url, { wait: 2, waitTimeout: 0 });
    await assert.rejects(small.emit("a", 1), Unreplicated);
});

test("the master is lost during the wait", async (t) => {
    const server = await Server.start(t);
    const redis = server.client(t);
    await using em = new Emitter(server.url, { wait: 1, waitTimeout: 20_000 });
    const emit = assert.rejects(em.emit("a", 1), OutcomeUnknown);
    await until(async () => (await redis.llen("a:events")) === 1, "the event is queued");
    await server.kill();
    await emit;
});

test("disks are waited for", async (t) => {
    const server = await Server.start(t, "--appendonly", "yes", "--appendfsync", "always");
    const redis = server.client(t);
    const [knows] = (await redis.call("COMMAND", ["INFO", "WAITAOF"])) as unknown[];
    await using em = new Emitter(server.url, { waitLocal: true });
    if (knows === null) {
        await assert.rejects(em.emit("a", 1), /no WAITAOF: waitLocal needs Redis 7\.2/);
        return;
    }
    assert.equal((await em.emit("a", 1)).queued, 1);
    await using more = new Emitter(server.url, { wait: 1, waitTimeout: 50, waitLocal: true });
    await assert.rejects(more.emit("a", 2), /0 of 1 replicas have it: it is lost/);
    await redis.config("SET", "appendonly", "no");
    await using without = new Emitter(server.url, { waitLocal: true });
    await assert.rejects(
        without.emit("a", 3),
        (error) => error instanceof Unconnected && /appendonly is disabled; nothing/.test(error.message),
    );
    assert.equal(await redis.llen("a:events"), 2);
});

/** A server without WAITAOF cannot show these replies. */
test("the reply to a wait is read", () => {
    const local = ReplicaWait.of(1, 50, true);
    const replicas = ReplicaWait.of(2, 49.5, false);
    assert.ok(local !== undefined && replicas !== undefined);
    assert.deepEqual(
        [local.command, replicas.command],
        [
            ["WAITAOF", 1, 1, 50],
            ["WAIT", 2, 50],
        ],
    );
    assert.deepEqual([local.read([1, 1]), local.read([1, 2]), replicas.read(2)], Array(3).fill(undefined));
    assert.deepEqual(local.read([0, 1]), { reached: 1, wanted: 1, notLocal: true });
    assert.deepEqual(local.read([1, 0]), { reached: 0, wanted: 1, notLocal: false });
    assert.deepEqual(replicas.read(1), { reached: 1, wanted: 2, notLocal: false });
    for (const [wait, reply] of [
        [local, 1],
        [local, [1]],
        [local, null],
        [replicas, [1, 1]],
        [replicas, "2"],
    ] as const) {
        assert.throws(() => wait.read(reply), /did not return a number/);
    }
    assert.throws(() => replicas.read(new Error("NOPERM no")), /NOPERM no/);
    assert.match(
        new Unreplicated("a", { reached: 1, wanted: 1, notLocal: true }).message,
        /only 1 of 1 replicas have it, and it is not on the master's disk: it is lost/,
    );
    assert.deepEqual(
        [ReplicaWait.of(1, 0, false)?.timeoutMs, ReplicaWait.of(1, 1e6, false)?.timeoutMs],
        [1, 60_000],
    );
    assert.equal(ReplicaWait.of(0, 50, false), undefined);
});

test("a wait is a number of replicas", () => {
    for (const wait of [-1, 1.5, "1", null, Number.NaN]) {
        const options = { wait: wait as number };
        assert.throws(
            () => new Emitter("redis://127.0.0.1", options),
            /wait is .*; it is a number of replicas/,
        );
    }
    const options = { waitTimeout: Number.NaN };
    assert.throws(
        () => new Emitter("redis://127.0.0.1", options),
        /waitTimeout is NaN; it is a number of ms/,
    );
});
