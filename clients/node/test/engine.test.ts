/** Tests how the engine runs batches, without pipes. */
import assert from "node:assert/strict";
import { test } from "node:test";
import { Keys } from "../dist/names.js";
import type { HandlerContext } from "../dist/worker/context.js";
import { HandlerEnded } from "../dist/worker/effects.js";
import { Engine } from "../dist/worker/engine.js";
import { type Handler, Handlers } from "../dist/worker/handlers.js";
import { Output } from "../dist/worker/output.js";
import { ProtocolError, readLine } from "../dist/worker/protocol.js";
import { batch, HELLO } from "./serving.js";
import { until } from "./support.js";

interface Answer {
    readonly type: string;
    readonly batch: number;
    readonly id: number;
}

/** Answers are written at the end of a turn. */
const turn = () => new Promise((resolve) => setImmediate(resolve));

/** An engine with one handler, and the answers that it has written, by writes. */
class Served {
    readonly writes: Answer[][] = [];
    readonly engine: Engine;

    constructor(handler: Handler<unknown>) {
        const handlers = new Handlers();
        handlers.onOther(handler);
        const output = new Output((text) => {
            this.writes.push(
                text
                    .trimEnd()
                    .split("\n")
                    .map((line) => JSON.parse(line)),
            );
        });
        this.engine = new Engine(handlers, new Keys(), output, (level, message, error) => {
            throw new Error(`${level}: ${message}`, { cause: error });
        });
        this.send(HELLO);
    }

    /** The last answer about a batch. */
    last(number: number): Answer | undefined {
        return this.writes.flat().findLast((answer) => answer.batch === number);
    }

    send(...lines: object[]): void {
        for (const line of lines) {
            const read = readLine(JSON.stringify(line));
            assert.ok(read !== undefined);
            this.engine.receive(read);
        }
    }
}

const EVENTS = Array.from({ length: 50 }, (_, n) => ({ n }));

test("all that ends in one turn is one write, with one line for each batch", async () => {
    let running = 0;
    const served = new Served(async () => {
        running += 1;
        await undefined;
        running -= 1;
    });
    served.send(batch(1, "a", EVENTS), batch(2, "b", EVENTS), batch(3, "c", EVENTS));
    assert.equal(running, 0, "no handler runs before all lines are taken");
    await served.engine.idle();
    await turn();
    // A slow machine may need a second turn.
    for (const write of served.writes) {
        assert.equal(new Set(write.map((answer) => answer.batch)).size, write.length);
    }
    for (const number of [1, 2, 3]) {
        assert.deepEqual(served.last(number), { type: "ok", batch: number, id: number * 100 + 49 });
    }
});

test("the answer of an event waits for no later event", async () => {
    let end = () => {};
    const served = new Served(async (_, cx) => {
        if (cx.id === 102) {
            await new Promise<void>((resolve) => {
                end = resolve;
            });
        }
    });
    served.send(batch(1, "a", EVENTS.slice(0, 4)), batch(2, "b", EVENTS.slice(0, 1)));
    await until(() => served.last(1)?.id === 101 && served.last(2)?.id === 200, "an answer of each batch");
    assert.equal(served.engine.inHand, 1);
    assert.equal(served.engine.describe(), 'event 102 of "a"');
    end();
    await until(() => served.last(1)?.id === 103, "the last answer");
});

test("a cancel that is read together with its batch comes before the handler", async () => {
    const ran: number[] = [];
    const served = new Served((_, cx) => {
        ran.push(cx.id);
    });
    served.send(batch(1, "a", EVENTS.slice(0, 3)), { type: "cancel", batch: 1, id: 101 });
    await served.engine.idle();
    await turn();
    assert.deepEqual(ran, [100]);
    assert.deepEqual(served.writes.flat(), [
        { type: "ok", batch: 1, id: 100 },
        { type: "cancelled", batch: 1, id: 101 },
    ]);
});

test("a batch is refused beside another one of its object or number, and taken after it", async () => {
    const served = new Served(async () => undefined);
    served.send(batch(1, "a", EVENTS.slice(0, 1)));
    assert.throws(() => served.send(batch(2, "a", EVENTS.slice(0, 1))), ProtocolError);
    assert.throws(() => served.send(batch(1, "b", EVENTS.slice(0, 1))), ProtocolError);
    await served.engine.idle();
    served.send(batch(1, "a", EVENTS.slice(0, 1)));
    await served.engine.idle();
});

test("after the death of the worker no batch begins, and there is no answer", async () => {
    let signal: AbortSignal | undefined;
    let ran = 0;
    const served = new Served(async (_, cx) => {
        ran += 1;
        signal = cx.signal;
        await new Promise((resolve) => cx.signal.addEventListener("abort", resolve));
    });
    served.send(batch(1, "a", EVENTS));
    await until(() => signal !== undefined, "the handler");
    served.send(batch(2, "b", EVENTS));
    served.engine.die("it is dead");
    await served.engine.idle();
    await turn();
    assert.equal(ran, 1);
    assert.equal(signal?.reason.message, "it is dead");
    assert.deepEqual(served.writes, []);
});

test("a clock that is set back does not keep handlers from reading the worker's lines", async (t) => {
    t.mock.timers.enable({ apis: ["Date"], now: 1_000_000 });
    let ran = 0;
    const served = new Served(() => {
        ran += 1;
        t.mock.timers.setTime(ran === 1 ? 10 : 10 + ran * 15);
    });
    served.send(batch(1, "a", EVENTS));
    setImmediate(() => served.send({ type: "cancel", batch: 1, id: 101 }));
    await served.engine.idle();
    await turn();
    assert.equal(ran, 1);
    assert.equal(served.writes.flat().at(-1)?.type, "cancelled");
});

test("what a context makes late knows how the run stands", async () => {
    let context: HandlerContext | undefined;
    const served = new Served(async (_, cx) => {
        context = cx;
        await new Promise((resolve) => setTimeout(resolve, 20));
        if (cx.cancelled) {
            // The signal is made after the cancel.
            assert.equal(cx.signal.aborted, true);
            assert.match(cx.signal.reason.message, /asked to give up/);
        }
    });
    served.send(batch(1, "a", EVENTS.slice(0, 1), { once: { x: { y: 1 } } }));
    await until(() => context !== undefined, "the handler");
    served.send({ type: "cancel", batch: 1, id: 100 });
    await served.engine.idle();
    await turn();
    assert.equal(served.writes.flat()[0]?.type, "cancelled");
    const cx = context as HandlerContext;
    // The first emit of this run comes after its end.
    assert.throws(() => cx.emit("b", 1), HandlerEnded);
    await assert.rejects(
        cx.once("x", () => 2),
        HandlerEnded,
    );
    assert.deepEqual(
        [cx.id, cx.prev, cx.object, cx.attempt, cx.crashes, cx.raw],
        [100, 0, "a", 1, 0, '{"n":0}'],
    );
});

test("an envelope without a whole id or prev is refused", () => {
    for (const [event, member] of [
        [null, "id"],
        ["text", "id"],
        [{ prev: 0 }, "id"],
        [{ id: -1, prev: 0 }, "id"],
        [{ id: 2 ** 53, prev: 0 }, "id"],
        [{ id: 1 }, "prev"],
        [{ id: 1, prev: 0.5 }, "prev"],
    ] as const) {
        const line = JSON.stringify({ type: "batch", batch: 1, object: "a", events: [event] });
        assert.throws(
            () => readLine(line),
            (error: Error) =>
                error instanceof ProtocolError &&
                error.message.includes(`member ${member} is no whole number`),
        );
    }
});
