/** Tests of options that a call does not have: a misspelt one must not be ignored. */
import assert from "node:assert/strict";
import { test } from "node:test";
import { Emitter, type HandlerContext, Postponed, Rejected, Transient, Worker } from "seriatim";
import { HandlerTest } from "seriatim/testing";
import { checkOptions } from "../dist/options.js";
import { Server } from "./support.js";

/** Hides a member that is not there from the compiler, which would refuse it. */
const loose = (options: unknown) => options as Record<string, never>;

const refusal = (message: string | RegExp) => ({ name: "TypeError", message });

test("an unknown option of an emitter or a worker is refused by name, with the right one", () => {
    assert.throws(
        () => new Emitter("redis://127.0.0.1:1", loose({ nmae: "a" })),
        refusal(
            'new Emitter: unknown option "nmae"; the options are namespace, connectTimeout, replyTimeout, eventBytesMax, chunkEventsMax, chunkBytesMax, wait, waitTimeout, waitLocal',
        ),
    );
    assert.throws(
        () => new Worker(undefined, loose({ nmae: "a" })),
        refusal('new Worker: unknown option "nmae"; did you mean "name"?'),
    );
    assert.throws(
        () => new Worker(undefined, loose({ concurency: 1 })),
        refusal('new Worker: unknown option "concurency"; did you mean "concurrency"?'),
    );
    const worker = new Worker();
    const on = worker.on as (...args: unknown[]) => void;
    const onOther = worker.onOther as (...args: unknown[]) => void;
    assert.throws(
        () => on.call(worker, "t", () => undefined, { retry: "fixed-5m-2" }),
        refusal(/^worker\.on takes no options: /),
    );
    assert.throws(
        () => onOther.call(worker, () => undefined, {}),
        refusal(/^worker\.onOther takes no options: /),
    );
});

test("an unknown option of a call is refused, and nothing is queued", async (t) => {
    const server = await Server.start(t);
    const redis = server.client(t);
    await using em = new Emitter(server.url);
    const emit = (options: unknown) => em.emit("a", 1, loose(options));
    for (const [call, text] of [
        [
            () => emit({ idempotency_key: "k" }),
            'emit: unknown option "idempotency_key"; did you mean "idempotencyKey"?',
        ],
        [() => emit({ awaited: true, kep: 1 }), 'emit: unknown option "kep"; did you mean "keep"?'],
        [() => emit("k"), "emit: the options are an object, not of type string"],
        [() => emit(null), "emit: the options are an object, not null"],
        [
            () => em.schedule("a", 1, loose({ atfer: 1 })),
            'schedule: unknown option "atfer"; did you mean "after"?',
        ],
        [
            () => em.schedule("a", 1, loose({ idempotencyKey: "k" })),
            'schedule: unknown option "idempotencyKey"; a schedule has a "key": another schedule with this key replaces it',
        ],
        [
            () => em.scheduleMany([["a", 1, loose({ delay: 1 })]]),
            'scheduleMany: unknown option "delay"; the options are after, at, key, keep',
        ],
        [
            () => em.call("a", 1, loose({ timeuot: 1 })),
            'call: unknown option "timeuot"; did you mean "timeout"?',
        ],
        [
            () => em.endOf("a", "n", 100, loose({ Signal: 1 })),
            'endOf: unknown option "Signal"; did you mean "signal"?',
        ],
    ] as const) {
        await assert.rejects(call, refusal(text));
    }
    assert.deepEqual(await redis.keys("*"), []);
    const sent = await em.emit("a", 1, { awaited: true, idempotencyKey: "n" });
    await assert.rejects(sent.wait(100, loose({ sginal: 1 })), refusal(/^wait: .*"signal"/));
    await assert.rejects(sent.end(100, loose({ sginal: 1 })), refusal(/^end: .*"signal"/));
});

/** Story: the key was ignored, so an emit that was repeated was queued twice. */
test("an emit in a transaction refuses a key, and says why", async (t) => {
    const redis = (await Server.start(t)).client(t);
    await using em = new Emitter(redis);
    const why =
        "an emit in your own transaction has no idempotency key: write a key of your own in the transaction, and look at it under WATCH";
    const multi = redis.multi();
    for (const [options, text] of [
        [{ idempotencyKey: "a" }, `appendTo: unknown option "idempotencyKey"; ${why}`],
        [{ awaited: true }, `appendTo: unknown option "awaited"; its end cannot be awaited, because ${why}`],
        [{ subevent: [] }, 'appendTo: unknown option "subevent"; did you mean "subevents"?'],
    ] as const) {
        assert.throws(() => em.appendTo(multi, "a", 1, loose(options)), refusal(text));
    }
    assert.equal(multi.length, 1, "the transaction is unchanged");
});

test("an unknown option of a handler or of the test kit is refused", async () => {
    const worker = new Worker();
    worker.on<{ call: string }>("t", ({ call }, cx) => {
        const emit = cx.emit as (this: HandlerContext, ...args: unknown[]) => void;
        if (call === "emit") {
            emit.call(cx, "a", 1, { idempotencyKey: "k" });
        } else if (call === "schedule") {
            cx.schedule("a", 1, loose({ atfer: 1 }));
        } else if (call === "reject") {
            throw new Rejected("never", loose({ retryAfter: 5 }));
        } else if (call === "postpone") {
            throw new Postponed(5, "later", loose({ reason: "no" }));
        } else {
            throw new Transient("later", loose({ retry_after: 5 }));
        }
    });
    const kit = new HandlerTest(worker);
    for (const [call, text] of [
        ["emit", "TypeError: cx.emit takes no options: its event is queued exactly once"],
        ["schedule", 'TypeError: cx.schedule: unknown option "atfer"; did you mean "after"?'],
        ["reject", 'TypeError: new Rejected: unknown option "retryAfter"; the options are cause'],
        ["postpone", 'TypeError: new Postponed: unknown option "reason"; the options are cause'],
        ["throw", 'TypeError: new Transient: unknown option "retry_after"; did you mean "retryAfter"?'],
    ] as const) {
        (await kit.run({ event: { type: "t", call } })).assertFailed(text);
    }
    const run = kit.run.bind(kit) as (...args: unknown[]) => Promise<unknown>;
    await assert.rejects(
        run("order:1", { type: "t" }),
        refusal(/^HandlerTest\.run: the options are an object/),
    );
    await assert.rejects(run({ event: 1, atempt: 2 }), refusal(/"atempt"; did you mean "attempt"\?/));
    await assert.rejects(run({ event: 1 }, { timeuot: 2 }), refusal(/"timeuot"; did you mean "timeout"\?/));
});

test("the members of every object are unknown options, too", () => {
    for (const name of ["constructor", "toString"]) {
        assert.throws(() => checkOptions("f", { [name]: 1 }, { a: true }), refusal(/^f: unknown option/));
    }
    checkOptions("f", Object.create(null), { a: true });
    checkOptions("f", { a: undefined }, { a: true });
});
