/** Tests of `emitMany`, of transactions of the caller, and of arguments. */
import assert from "node:assert/strict";
import { test } from "node:test";
import { Redis } from "ioredis";
import {
    EmitManyError,
    Emitter,
    InvalidEvent,
    OutcomeUnknown,
    OutOfMemory,
    RawJson,
    Refused,
    TooLarge,
    Unconnected,
    WrongType,
} from "seriatim";
import { Relay, Server, until } from "./support.js";

const list = (redis: Redis, key: string) => redis.lrange(key, "0", "-1");

test("emitMany takes any iterable, and sends what a slow one has given", async (t) => {
    const server = await Server.start(t);
    const redis = server.client(t);
    await using em = new Emitter(server.url, { chunkEventsMax: 10 });
    assert.deepEqual(await em.emitMany(new Map([["a", 1]])), { events: 1, chunks: 1 });
    assert.deepEqual(await em.emitMany([]), { events: 0, chunks: 0 });
    let give: () => void = () => undefined;
    const wait = new Promise<void>((resolve) => {
        give = resolve;
    });
    async function* slow(): AsyncGenerator<[string, unknown]> {
        yield ["b", 1];
        yield ["b", 2];
        await wait;
        for (let n = 3; n <= 25; n += 1) {
            yield ["b", n];
        }
    }
    const many = em.emitMany(slow());
    await until(async () => (await redis.llen("b:events")) === 2, "the first events are queued");
    give();
    assert.equal((await many).events, 25);
    const queued = (await list(redis, "b:events")).reverse().map(Number);
    assert.deepEqual(
        queued,
        Array.from({ length: 25 }, (_, n) => n + 1),
    );
});

test("events before an error of the source are queued, and the error is passed on", async (t) => {
    const server = await Server.start(t);
    const redis = server.client(t);
    await using em = new Emitter(server.url);
    function* broken(): Generator<[string, unknown]> {
        yield ["a", 1];
        throw new RangeError("the file is broken");
    }
    await assert.rejects(em.emitMany(broken()), /the file is broken/);
    assert.deepEqual(await list(redis, "a:events"), ["1"]);
});

/** Story: an idempotency key in the third place was ignored. */
test("an event with a third member ends emitMany, and the events before it are queued", async (t) => {
    const server = await Server.start(t);
    const redis = server.client(t);
    await using em = new Emitter(server.url);
    const events = [
        ["a", 1],
        ["a", 2, { idempotencyKey: "k" }],
        ["a", 3],
    ] as unknown as [string, unknown][];
    await assert.rejects(
        em.emitMany(events),
        /^TypeError: emitMany: the event at position 1 has 3 members; it is a pair of an object and an event/,
    );
    assert.deepEqual(await list(redis, "a:events"), ["1"]);
});

test("a loss of the connection stops emitMany at a position, and nothing is sent twice", async (t) => {
    const server = await Server.start(t);
    const [proxy, redis] = [await Relay.start(t, server), server.client(t)];
    await using em = new Emitter(proxy.url, { chunkEventsMax: 10 });
    let closed = false;
    function* events(): Generator<[string, unknown]> {
        try {
            for (let n = 0; n < 1000; n += 1) {
                if (n === 55) {
                    proxy.passesReplies = false;
                }
                yield ["a", n];
            }
        } finally {
            closed = true;
        }
    }
    const many = em.emitMany(events());
    many.catch(() => undefined);
    await until(async () => !proxy.passesReplies && (await redis.llen("a:events")) > 0, "events are queued");
    await until(async () => (await redis.llen("a:events")) >= 50, "a chunk without a reply");
    proxy.cut();
    proxy.passesReplies = true;
    await assert.rejects(many, (error: EmitManyError) => {
        assert.ok(error instanceof EmitManyError && error.isUnknown);
        assert.equal(error.failed.length, 1);
        assert.equal(error.failed[0]?.first, error.acknowledged);
        assert.equal(error.stopped, error.acknowledged + 10);
        return true;
    });
    assert.ok(closed, "the iterator is closed");
    const queued = (await list(redis, "a:events")).reverse().map(Number);
    assert.deepEqual(
        queued,
        Array.from({ length: queued.length }, (_, n) => n),
    );
});

test("the outcome of an emit in a transaction of the caller", async (t) => {
    const server = await Server.start(t);
    const redis = server.client(t);
    await using em = new Emitter(server.url);
    const multi = redis.multi().incr("orders");
    const placed = em.appendTo(multi, "a", { n: 1 }, { subevents: [{ n: 2 }], data: "x" });
    placed.outcome(await multi.exec());
    assert.deepEqual(await list(redis, "a:events"), ['{"n":2}', '{"n":1}']);
    assert.deepEqual([await redis.get("orders"), await redis.get("a:data")], ["1", '"x"']);

    // A watched key has changed.
    const watcher = server.client(t);
    await watcher.watch("orders");
    await redis.incr("orders");
    const watched = watcher.multi();
    const unplaced = em.appendTo(watched, "a", 3);
    const reply = await watched.exec();
    assert.throws(() => unplaced.outcome(reply), Refused);

    // A wrong type, and no memory.
    await redis.set("w:events", "x");
    const wrong = redis.multi();
    const w = em.appendTo(wrong, "w", 1);
    const wrongReply = await wrong.exec();
    assert.throws(() => w.outcome(wrongReply), WrongType);
    await redis.config("SET", "maxmemory", "1");
    const full = redis.multi();
    const f = em.appendTo(full, "a", 1);
    const error = await full.exec().catch((error: unknown) => error);
    assert.ok(f.failure(error) instanceof OutOfMemory);
    await redis.config("SET", "maxmemory", "0");

    // A connection that is lost.
    const proxy = await Relay.start(t, server);
    const lossy = new Redis(proxy.url, { autoResendUnfulfilledCommands: false, retryStrategy: () => null });
    lossy.on("error", () => undefined);
    t.after(() => lossy.disconnect());
    await lossy.ping();
    proxy.passesReplies = false;
    const lost = lossy.multi();
    const l = em.appendTo(lost, "lost", 1);
    const exec = lost.exec().catch((error: unknown) => error);
    await until(async () => (await redis.llen("lost:events")) === 1, "the event is queued");
    proxy.cut();
    assert.ok(l.failure(await exec) instanceof OutcomeUnknown);

    // What is no transaction.
    assert.throws(() => em.appendTo(redis.pipeline(), "a", 1), /needs a transaction/);
    for (const none of [{}, undefined, redis, "a"]) {
        assert.throws(() => em.appendTo(none as never, "a", 1), {
            name: "TypeError",
            message:
                "the first argument of appendTo is a transaction of ioredis: the value that redis.multi() returns",
        });
    }
    const prefixed = server.client(t, { keyPrefix: "mine:" });
    assert.throws(() => em.appendTo(prefixed.multi(), "a", 1), /keyPrefix/);
    const bad = redis.multi();
    const before = bad.length;
    assert.throws(() => em.appendTo(bad, "a", new RawJson("{")), InvalidEvent);
    assert.equal(bad.length, before, "the transaction is unchanged");
});

test("a closed emitter refuses calls, and ends the calls under way", async (t) => {
    const server = await Server.start(t);
    const em = new Emitter(server.url);
    await em.connect();
    const under = em.emit("a", 1);
    await em.close();
    assert.equal((await under).queued, 1);
    await assert.rejects(em.emit("a", 2), Unconnected);
});

test("values that JSON does not have are refused, with the place", async (t) => {
    const server = await Server.start(t);
    await using em = new Emitter(server.url);
    class Money {
        toJSON() {
            return { cents: 5 };
        }
    }
    for (const [value, why] of [
        [{ a: Number.NaN }, /its member "a" is NaN/],
        [new Map([["a", 1]]), /it is a Map/],
        [{ at: new Date(Number.NaN) }, /"at" is a Date without a time/],
        [{ raw: new RawJson("1") }, /a RawJson is a whole event/],
        [1n, /BigInt/],
        [undefined, /it is undefined/],
        [() => 1, /it is a function/],
    ] as const) {
        await assert.rejects(
            em.emit("a", value),
            (error: Error) => error instanceof InvalidEvent && why.test(error.message),
        );
    }
    const redis = server.client(t);
    await em.emit("a", {
        a: null,
        b: {},
        c: [undefined],
        d: undefined,
        e: "\\ud800",
        f: new Money(),
        g: new Date(0),
    });
    assert.deepEqual(await list(redis, "a:events"), [
        '{"a":null,"b":{},"c":[null],"e":"\\\\ud800","f":{"cents":5},"g":"1970-01-01T00:00:00.000Z"}',
    ]);
});

test("wrong arguments are refused", async (t) => {
    const server = await Server.start(t);
    await using em = new Emitter(server.url);
    await assert.rejects(em.schedule("a", 1, { at: 1, after: 1 }), /after or at, not both/);
    await assert.rejects(em.schedule("a", 1, { after: -1 }), /0 ms or more/);
    await assert.rejects(
        em.schedule("a", 1, { at: new Date(Number.NaN) }),
        /neither a number of ms nor a Date/,
    );
    await assert.rejects(em.schedule("a", 1, { keep: "all" as "time" }), /"time" or "first"/);
    await assert.rejects(em.emit("a", 1, { idempotencyKey: "k", window: -5 }), /window is -5/);
    await assert.rejects(
        em.emit("a", "x".repeat(1024 * 1024 - 2), { idempotencyKey: "k", data: 1 }),
        TooLarge,
    );
    assert.throws(() => new Emitter(server.url, { replyTimeout: 0 }), /replyTimeout is 0/);
});
