/** Tests of `seriatim/testing`. */
import assert from "node:assert/strict";
import { test } from "node:test";
import {
    EmitsFull,
    type HandlerContext,
    HandlerEnded,
    InvalidResult,
    Postponed,
    RawJson,
    Rejected,
    Worker,
} from "seriatim";
import { HandlerTest, type Ran } from "seriatim/testing";

function handlers(): Worker {
    const worker = new Worker(undefined, { namespace: "shop" });
    worker.on<{ cents: number }>("placed", async (event, cx) => {
        const receipt = await cx.once("charge", () => ({ cents: event.cents, attempt: cx.attempt }));
        cx.emit("ledger:1", { type: "paid", cents: event.cents, by: { card: 1 } });
        if (cx.attempt === 1) {
            throw new TypeError("the bank is closed");
        }
        cx.schedule("user:1", { type: "remind" }, { after: 5, key: "k", keep: "time" });
        cx.cancel("user:1", "old");
        cx.result(receipt);
    });
    worker.on("declined", () => {
        throw new Rejected("no such card");
    });
    worker.on("later", () => {
        throw new Postponed(5);
    });
    worker.on("slow", async (_, cx) => {
        await new Promise((resolve) => cx.signal.addEventListener("abort", resolve));
        cx.emit("b", 1);
    });
    return worker;
}

test("a second run does what a retry does", async () => {
    const test = new HandlerTest(handlers());
    const placed = { object: "order:1", event: { type: "placed", cents: 1200 }, id: 12 };
    const first = await test.run(placed);
    first.assertFailed("TypeError: the bank is closed").assertOutcome("transient").assertNothingEmitted();
    assert.ok(first.thrown?.cause instanceof TypeError);
    assert.deepEqual(first.once, { charge: { cents: 1200, attempt: 1 } });

    const second = await test.run({ ...placed, attempt: 2 });
    second.assertDelivered();
    const paid = second.assertEmitted("ledger:1", { cents: 1200, by: {} });
    assert.equal(paid.raw, '{"type":"paid","cents":1200,"by":{"card":1}}');
    second.assertEmitted("ledger:1", (event: { cents: number }) => event.cents > 1000);
    second.assertNotEmitted("ledger:1", { cents: 1 });
    const later = second.assertScheduled("user:1", { type: "remind" });
    assert.deepEqual([later.key, later.afterMs, later.atMs, later.keep], ["k", 5, undefined, "time"]);
    assert.deepEqual(second.cancelled, [{ object: "user:1", key: "old" }]);
    assert.deepEqual(second.result, { cents: 1200, attempt: 1 });

    test.forget();
    const third = await test.run({ ...placed, attempt: 3 });
    assert.deepEqual(third.result, { cents: 1200, attempt: 3 });
    const other = await test.run({ ...placed, id: 13, attempt: 4 });
    assert.deepEqual(other.result, { cents: 1200, attempt: 4 });
});

test("every outcome is told", async () => {
    const test = new HandlerTest(handlers());
    (await test.run({ event: { type: "declined" } })).assertOutcome("rejected").assertFailed("no such card");
    (await test.run({ event: { type: "later" } })).assertOutcome("postponed");
    (await test.run({ event: [1] })).assertOutcome("unknown").assertFailed("for events without a type");
    const slow = await test.run({ event: { type: "slow" } }, { timeout: 10 });
    slow.assertOutcome("cancelled").assertNothingEmitted();
    const stop = AbortSignal.abort();
    (
        await test
            .run({ event: { type: "slow" } }, { signal: stop })
            .catch((error: unknown) => assert.fail(String(error)))
    ).assertOutcome("cancelled");
});

test("a signal that is first looked at behind the cancel is aborted", async () => {
    const worker = new Worker();
    let seen: [boolean, boolean, string] | undefined;
    worker.onOther(async (_, cx) => {
        while (!cx.cancelled) {
            await new Promise((resolve) => setImmediate(resolve));
        }
        seen = [cx.cancelled, cx.signal.aborted, cx.signal.reason.message];
    });
    (await new HandlerTest(worker).run({ event: 1 }, { timeout: 5 })).assertOutcome("cancelled");
    assert.deepEqual(seen, [true, true, "the test has cancelled the run"]);
});

test("a failed assertion shows the whole run", async () => {
    const ran = await new HandlerTest(handlers()).run({
        object: "order:1",
        event: { type: "placed", cents: 1 },
        attempt: 2,
    });
    const shows = (check: () => unknown, begin: string) =>
        assert.throws(check, (error: Error) => {
            assert.equal(error.name, "AssertionError");
            assert.ok(error.message.startsWith(begin), error.message);
            for (const part of [
                "event 1 of order:1: delivered",
                "emitted    ledger:1",
                'scheduled  user:1  {"type":"remind"}  key "k"',
                "cancelled  user:1",
                "result     {",
            ]) {
                assert.ok(error.message.includes(part), error.message);
            }
            return true;
        });
    shows(() => ran.assertFailed("x"), 'the handler has not failed with "x"');
    shows(() => ran.assertOutcome("rejected"), "the outcome is not rejected");
    shows(
        () => ran.assertEmitted("ledger:1", { cents: 2 }),
        'no event was emitted for ledger:1 like {"cents":2}',
    );
    shows(() => ran.assertScheduled("x", 1), "no event was scheduled for x like 1");
    shows(() => ran.assertNotEmitted("ledger:1", {}), "an event was emitted for ledger:1 like {}");
    shows(() => ran.assertNothingEmitted(), "something was emitted");
    const failed = await new HandlerTest(handlers()).run({ event: { type: "declined" } });
    assert.throws(
        () => failed.assertDelivered(),
        /the event was not delivered\nevent 1 of test:1: rejected, no such card/,
    );
});

/** Runs one handler. */
async function one(
    handler: (cx: HandlerContext, event: unknown) => unknown,
    event: unknown = 1,
): Promise<Ran> {
    const worker = new Worker();
    worker.onOther<unknown>((value, cx) => handler(cx, value));
    return await new HandlerTest(worker).run({ event, id: 5, prev: 4, crashes: 2, object: "o:1" });
}

test("the context has the facts of the event", async () => {
    const trace = { traceparent: "00-1-2-01", tracestate: "a=1" };
    const ran = await one((cx, event) => {
        assert.deepEqual(event, { type: "t", ...trace, n: 9007199254740992 });
        assert.deepEqual(
            [cx.id, cx.prev, cx.object, cx.type, cx.attempt, cx.crashes, cx.token, cx.fence],
            [5, 4, "o:1", "t", 1, 2, "test", { token: "test", id: 5 }],
        );
        assert.deepEqual([cx.traceparent, cx.tracestate], [trace.traceparent, trace.tracestate]);
        assert.ok(cx.raw.endsWith(' "n": 9007199254740993}'));
        assert.ok(cx.deadline.getTime() > Date.now() && !cx.cancelled && !cx.signal.aborted);
    }, new RawJson(`{"type":"t","traceparent":"00-1-2-01","tracestate":"a=1",\n"n": 9007199254740993}`));
    ran.assertDelivered();
});

test("limits of emits, results and subtasks", async () => {
    const big = "x".repeat(1_000_000);
    const ran = await one(async (cx) => {
        for (let n = 0; n < 996; n += 1) {
            cx.emit("b", n);
        }
        cx.schedule("b", 1);
        cx.cancel("b", "k");
        assert.throws(() => cx.emit("b", 1), EmitsFull);
        cx.result("x".repeat(65_534));
        assert.throws(
            () => cx.result("x".repeat(65_535)),
            /the result has 65537 bytes of JSON, the limit is 65536; keep it in a store/,
        );
        assert.throws(() => cx.result(undefined), InvalidResult);
        cx.result(1);
    });
    ran.assertDelivered();
    assert.deepEqual(
        [ran.emitted.length, ran.scheduled.length, ran.cancelled.length, ran.result],
        [996, 1, 1, 1],
    );
    const bytes = await one(async (cx) => {
        cx.emit("b", big);
        cx.emit("b", big);
        cx.result("x".repeat(60_000));
        assert.throws(() => cx.emit("b", "x".repeat(60_000)), EmitsFull);
        // A smaller result makes room.
        cx.result(0);
        cx.emit("b", "x".repeat(60_000));
        await assert.rejects(
            cx.once("v", () => "x".repeat(60_000)),
            /has run, but its value does not fit/,
        );
    });
    bytes.assertDelivered();
    const names = await one(async (cx) => {
        for (let n = 0; n < 1000; n += 1) {
            await cx.once(`n${n}`, () => n);
        }
        await cx.once("n1", () => assert.fail("it is done"));
        await cx.once("more", () => assert.fail("it must not run"));
    });
    names.assertOutcome("transient").assertFailed("name at most 1000 subtasks");
    (await one((cx) => cx.once("", () => 1))).assertOutcome("rejected").assertFailed("1 to 256 bytes, not 0");
    (await one((cx) => cx.once("v", () => 1n)))
        .assertOutcome("rejected")
        .assertFailed("cannot be written as JSON");
});

test("behind its end a handler can do nothing", async () => {
    let late: HandlerContext | undefined;
    await one((cx) => {
        late = cx;
    });
    assert.throws(() => late?.emit("b", 1), HandlerEnded);
    assert.throws(() => late?.result(1), /the handler has ended; it must set its result before it ends/);
    await assert.rejects(async () => await late?.once("x", () => 1), HandlerEnded);
});

test("invalid names and events of a test are refused as in an emitter", async () => {
    const test = new HandlerTest(new Worker());
    await assert.rejects(test.run({ object: "", event: 1 }), /an object name must not be empty/);
    await assert.rejects(test.run({ object: "{a}", event: 1 }), /without a namespace/);
    await assert.rejects(test.run({ event: Number.NaN }), /it is NaN/);
});
