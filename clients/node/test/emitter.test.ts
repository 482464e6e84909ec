/** Tests of the emitter: lost replies, lost connections, rights, limits. */
import assert from "node:assert/strict";
import { test } from "node:test";
import type { Redis } from "ioredis";
import { Emitter, OutcomeUnknown, Refused, Unconnected } from "seriatim";
import { Relay, Server, until } from "./support.js";

const list = (redis: Redis, key: string) => redis.lrange(key, "0", "-1");

test("emits of one emitter keep their order, also if they are not awaited", async (t) => {
    const server = await Server.start(t);
    const redis = server.client(t);
    await using em = new Emitter(server.url);
    await Promise.all(Array.from({ length: 500 }, (_, n) => em.emit("a", n)));
    const queued = (await list(redis, "a:events")).reverse().map(Number);
    assert.deepEqual(
        queued,
        Array.from({ length: 500 }, (_, n) => n),
    );
});

test("a reply that does not come is an unknown outcome, and the emit is not repeated", async (t) => {
    const server = await Server.start(t);
    const [proxy, redis] = [await Relay.start(t, server), server.client(t)];
    await using em = new Emitter(proxy.url, { replyTimeout: 200 });
    await em.connect();
    proxy.passesReplies = false;
    const failed = assert.rejects(em.emit("a", 1), (error: OutcomeUnknown) => {
        assert.ok(error instanceof OutcomeUnknown && error.isUnknown && error.object === "a");
        assert.match(
            error.message,
            /^it is unknown whether the call for a has taken effect: no reply within 200 ms; look/,
        );
        return true;
    });
    await failed;
    proxy.passesReplies = true;
    // The next emit has a connection of its own, so that it does not read a late reply.
    assert.deepEqual(await em.emit("a", 2), { events: 1, queued: 2, repeated: false });
    assert.equal(proxy.connections, 2);
    assert.deepEqual(await list(redis, "a:events"), ["2", "1"]);
});

test("a connection without a reply is left, and closed when its last call has ended", async (t) => {
    const server = await Server.start(t);
    const relay = await Relay.start(t, server);
    await using em = new Emitter(relay.url, { replyTimeout: 300 });
    await em.connect();
    relay.passesReplies = false;
    const first = assert.rejects(em.emit("a", 1), OutcomeUnknown);
    await new Promise((resolve) => setTimeout(resolve, 150));
    const second = em.emit("a", 2);
    await first;
    assert.equal(relay.open, 1, "the second call is still under way");
    relay.passesReplies = true;
    assert.equal((await second).queued, 2);
    await until(() => relay.open === 0, "the connection is closed");
});

test("a connection that is lost behind the request is an unknown outcome, and the emit is not repeated", async (t) => {
    const server = await Server.start(t);
    const [proxy, redis] = [await Relay.start(t, server), server.client(t)];
    await using em = new Emitter(proxy.url);
    await em.connect();
    proxy.passesReplies = false;
    const emits = [1, 2, 3].map((n) => em.emit("a", n));
    await until(async () => (await redis.llen("a:events")) === 3, "the events are queued");
    proxy.cut();
    for (const emit of await Promise.allSettled(emits)) {
        assert.ok(emit.status === "rejected" && emit.reason instanceof OutcomeUnknown);
    }
    proxy.passesReplies = true;
    assert.equal((await em.emit("a", 4)).queued, 4);
    assert.deepEqual(await list(redis, "a:events"), ["4", "3", "2", "1"]);
});

test("an emit with a key is repeated until its reply comes, and is queued once", async (t) => {
    const server = await Server.start(t);
    const [proxy, redis] = [await Relay.start(t, server), server.client(t)];
    await using em = new Emitter(proxy.url);
    // The first call loads the script.
    await em.emit("other", 1, { idempotencyKey: "k" });
    proxy.passesReplies = false;
    const emit = em.emit("a", 1, { idempotencyKey: "k" });
    await until(async () => (await redis.llen("a:events")) === 1, "the event is queued");
    proxy.cut();
    proxy.passesReplies = true;
    assert.deepEqual(await emit, { events: 1, queued: 1, repeated: true });
    assert.deepEqual(await list(redis, "a:events"), ["1"]);
});

test("an emit with a key whose outcome stays unknown says so, after four tries", async (t) => {
    const server = await Server.start(t);
    const [proxy, redis] = [await Relay.start(t, server), server.client(t)];
    await using em = new Emitter(proxy.url, { replyTimeout: 100, connectTimeout: 100 });
    await em.emit("other", 1, { idempotencyKey: "k" });
    proxy.passesReplies = false;
    await assert.rejects(em.emit("a", 1, { idempotencyKey: "k" }), OutcomeUnknown);
    // The tries behind the first one found no server that answers.
    assert.equal(proxy.connections, 4);
    proxy.passesReplies = true;
    assert.deepEqual(await em.emit("a", 1, { idempotencyKey: "k" }), {
        events: 1,
        queued: 1,
        repeated: true,
    });
    assert.deepEqual(await list(redis, "a:events"), ["1"]);
});

test("without a server nothing is sent, and the emitter connects again", async (t) => {
    const server = await Server.start(t);
    await using em = new Emitter(server.url);
    await em.emit("a", 1);
    assert.equal(em.isConnected, true);
    await server.kill();
    const error: unknown = await em.emit("a", 2).catch((error: unknown) => error);
    assert.ok(error instanceof Unconnected || error instanceof OutcomeUnknown);
    await assert.rejects(em.emit("a", 2), (error: Unconnected) => {
        assert.ok(error instanceof Unconnected && !error.isUnknown);
        assert.match(error.message, /^cannot connect to Redis at \/.*redis.sock: .*; nothing was sent$/);
        return true;
    });
    assert.equal(em.isConnected, false);
    await server.restart();
    assert.equal((await em.emit("a", 3)).queued, 1);
});

test("an emitter over the options or a client of ioredis has a connection of its own", async (t) => {
    const server = await Server.start(t);
    const redis = server.client(t);
    const client = server.client(t, { keyPrefix: "mine:", enableAutoPipelining: true, stringNumbers: true });
    for (const source of [{ path: server.path }, client]) {
        await using em = new Emitter(source, { namespace: "n" });
        assert.equal((await em.emit("a", 1)).events, 1);
    }
    assert.deepEqual((await redis.keys("*")).sort(), ["{n:0}:a:events", "{n:0}:objects.with.events"]);
    client.disconnect();
    for (const wrong of ["localhost", "http://x", 5, null, { isCluster: true, duplicate: () => undefined }]) {
        assert.throws(() => new Emitter(wrong as string), TypeError);
    }
    assert.throws(() => new Emitter(server.url, { namespace: "a b" }), /namespace "a b" is invalid/);
    assert.throws(
        () => new Emitter("http://user:secret@x"),
        (error: Error) => !error.message.includes("secret"),
    );
});

test("a user without the right to transactions is refused before anything is queued", async (t) => {
    const server = await Server.start(t);
    const redis = server.client(t);
    for (const [user, rights] of [
        ["nomulti", ["+exec", "-multi"]],
        ["noexec", ["+multi", "-exec"]],
    ] as const) {
        await redis.call("ACL", ["SETUSER", user, "on", ">p", "~*", "+@all", ...rights]);
        await using em = new Emitter({ path: server.path, username: user, password: "p" });
        await assert.rejects(em.emit("a", 1), Refused);
        await redis.call("ACL", ["SETUSER", user, "+multi", "+exec"]);
        assert.equal((await em.emit("a", 1)).events, 1, "the right counts from the next call on");
        await redis.del("a:events", "objects.with.events");
    }
    await using em = new Emitter({ path: server.path, username: "nobody", password: "secret" });
    await assert.rejects(em.emit("a", 1), (error: Unconnected) => {
        assert.ok(error instanceof Unconnected);
        assert.match(error.message, /WRONGPASS/);
        assert.ok(!error.message.includes("secret"));
        return true;
    });
});

test("the rights of the protocol are enough", async (t) => {
    const server = await Server.start(t);
    const redis = server.client(t);
    const grant = async (name: string, ...rules: string[]) => {
        await redis.call("ACL", ["SETUSER", name, "reset", "on", ">p", ...rules]);
        return new Emitter({ path: server.path, username: name, password: "p" }, { namespace: "shop" });
    };
    const pushes = "(~{shop:0}:*:events ~{shop:0}:objects.with.events +lpush)";
    await using producer = await grant("producer", "+multi", "+exec", "(~{shop:0}:*:data +set)", pushes);
    assert.equal((await producer.emit("a", 1, { data: 2 })).queued, 1);
    await assert.rejects(producer.schedule("a", 1, { at: 5 }), Refused);
    await using scripted = await grant(
        "scripted",
        ..."+multi +exec +time".split(" "),
        "(~{shop:0}:*:events ~{shop:0}:objects.with.events +eval +evalsha +type +llen +lpush)",
        "(~{shop:0}:*:data +set)",
        "(~{shop:0}:events.emitted +type +hget +hset +hdel)",
        "(~{shop:0}:events.emitted.ends +type +zscore +zadd +zrange +zrem)",
        "(~{shop:0}:event.limits +hgetall)",
        "(~{shop:0}:event.marks +zcard)",
        "(~{shop:0}:event.groups.waiting +get)",
    );
    assert.equal((await scripted.emit("a", 1, { idempotencyKey: "k", data: 3 })).queued, 2);
    await using scheduler = await grant(
        "scheduler",
        ..."+multi +exec +time".split(" "),
        "(~{shop:0}:*:events.scheduled +hset +hsetnx +hdel)",
        "(~{shop:0}:events.scheduled +zadd +zrem +zscore)",
        "(~{shop:0}:events.scheduled.wake +zadd)",
        "(%R~{shop:0}:*:event.key +get)",
    );
    assert.equal(
        (await scheduler.schedule("a", 1, { after: 600_000, key: "k", keep: "time" })).change,
        "new",
    );
    assert.equal(await scheduler.cancel("a", "k"), "cancelled");
});

test("a replica is refused at the connect", async (t) => {
    const server = await Server.start(t);
    const redis = server.client(t);
    await redis.call("REPLICAOF", ["127.0.0.1", "1"]);
    await using em = new Emitter(server.url);
    await assert.rejects(em.emit("a", 1), (error: Error) => {
        assert.ok(error instanceof Unconnected);
        assert.match(error.message, /READONLY this server is a replica/);
        return true;
    });
    await redis.call("REPLICAOF", ["NO", "ONE"]);
    assert.equal((await em.emit("a", 1)).queued, 1);
});

test("an emitter learns of limits while it is used", async (t) => {
    const server = await Server.start(t);
    const redis = server.client(t);
    await using em = new Emitter(server.url);
    await em.emit("a:1", 0);
    await redis.hset("event.limits", "a:*", '{"queued_max":2,"markers_max":null}', "bad", "{");
    // Without limits, the emitter looks every 5 s.
    const full = async () => {
        const error = await em.emit("a:1", 1).then(
            () => undefined,
            (error: unknown) => error,
        );
        return error;
    };
    const error = await until(full, "the limit is obeyed", 15_000);
    assert.match(String(error), /the object has \d+ events queued, and 1 more would exceed the limit of 2/);
    await redis.del("event.limits");
    await until(async () => (await full()) === undefined, "the limit is gone", 15_000);
});
