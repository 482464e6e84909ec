/**
 * Handles the batches of one worker. The events of a batch run one after another, and several batches run at the
 * same time. The engine knows no pipes: it gets lines and writes lines.
 */
import type { Keys } from "../names.js";
import type { EventInHand, Run } from "./context.js";
import type { Handlers } from "./handlers.js";
import type { Log } from "./log.js";
import { Cancelled, errorText, type Outcome, Transient } from "./outcomes.js";
import type { Output } from "./output.js";
import { type Batch, type Hello, type Line, ProtocolError } from "./protocol.js";
import { rawEvents } from "./raw.js";
import { begin, type Ended } from "./run.js";

/** The longest time in ms for which handlers run without a look at the worker's lines. */
const TURN_MS = 20;

/** A batch in hand. */
interface InHand {
    readonly batch: Batch;
    /** The run of the event in hand, if one runs. */
    run: Run | undefined;
    /** The id of an event that is to be given up before it runs. */
    cancelled: number | undefined;
    /** The place of the event in hand. */
    at: number;
    /** The subtask that waits for the worker's reply. */
    stored: { readonly id: number; readonly reply: (error: string | undefined) => void } | undefined;
    /** The texts of the events, when a handler has asked for one. */
    raw: string[] | undefined;
    /** The end of the last subtask's turn: a batch has one of them at a time. */
    turn: Promise<void>;
}

export class Engine {
    private hello: Hello | undefined;
    private readonly batches = new Map<number, InHand>();
    private isDead = false;
    private turnBegan = performance.now();
    private whenIdle: (() => void)[] = [];

    constructor(
        private readonly handlers: Handlers,
        private readonly keys: Keys,
        private readonly output: Output,
        private readonly log: Log,
        /** Called with the number of batches in hand, when it changes. */
        private readonly changed: (inHand: number) => void = () => undefined,
    ) {}

    /** Whether the worker has written its first line. */
    get isReady(): boolean {
        return this.hello !== undefined;
    }

    /** The batches in hand, as text. */
    describe(): string {
        return [...this.batches.values()]
            .map(({ batch, at }) => `event ${batch.events[at]?.id} of ${JSON.stringify(batch.object)}`)
            .join(", ");
    }

    get inHand(): number {
        return this.batches.size;
    }

    /** @throws {ProtocolError} */
    receive(line: Line): void {
        this.turnBegan = performance.now();
        if (line.type === "hello") {
            if (this.hello !== undefined) {
                throw new ProtocolError("the worker said hello twice");
            }
            this.hello = line;
            return;
        }
        if (this.hello === undefined) {
            throw new ProtocolError("the first line of the worker is no hello");
        }
        switch (line.type) {
            case "batch":
                this.take(line, this.hello);
                break;
            case "cancel":
                this.cancel(line.batch, line.id);
                break;
            case "once": {
                const batch = this.batches.get(line.batch);
                const stored = batch?.stored;
                // A reply about an event that was given up has no reader.
                if (batch !== undefined && stored?.id === line.id) {
                    batch.stored = undefined;
                    stored.reply(line.error);
                }
                break;
            }
            case "stop":
                break;
        }
    }

    /** Cancels all handlers. No answer is written any more, because the worker is dead. */
    die(why: string): void {
        this.isDead = true;
        for (const { run } of this.batches.values()) {
            run?.cancel(new Cancelled(why));
        }
    }

    /** Resolves when no batch is in hand. */
    async idle(): Promise<void> {
        if (this.batches.size > 0) {
            await new Promise<void>((resolve) => this.whenIdle.push(resolve));
        }
    }

    private take(batch: Batch, hello: Hello): void {
        const isTwice = [...this.batches.values()].some((one) => one.batch.object === batch.object);
        if (this.batches.has(batch.number) || isTwice) {
            throw new ProtocolError(
                `the worker sent batch ${batch.number} beside another batch of its object or number`,
            );
        }
        const inHand: InHand = {
            batch,
            run: undefined,
            cancelled: undefined,
            at: 0,
            stored: undefined,
            raw: undefined,
            turn: Promise.resolve(),
        };
        this.batches.set(batch.number, inHand);
        this.changed(this.batches.size);
        this.handle(inHand, hello)
            .catch((error: unknown) => this.log("error", "the package has failed", error))
            .finally(() => {
                this.batches.delete(batch.number);
                this.changed(this.batches.size);
                if (this.batches.size === 0) {
                    this.whenIdle.splice(0).forEach((resolve) => {
                        resolve();
                    });
                }
            });
    }

    private async handle(inHand: InHand, hello: Hello): Promise<void> {
        const { batch } = inHand;
        for (; inHand.at < batch.events.length; inHand.at += 1) {
            await this.breathe();
            if (this.isDead || !(await this.event(inHand, hello))) {
                return;
            }
        }
    }

    /** Runs the event in hand, and answers. Returns whether the batch goes on. */
    private async event(inHand: InHand, hello: Hello): Promise<boolean> {
        const { number, object } = inHand.batch;
        const hand = this.hand(inHand, hello);
        if (inHand.cancelled === hand.id) {
            this.answer(number, hand.id, "cancelled");
            return false;
        }
        const { run, ended } = begin(this.handlers, hand);
        inHand.run = run;
        if (this.isDead) {
            run.cancel(new Cancelled("the worker has ended"));
        }
        const end = await ended;
        inHand.run = undefined;
        if (this.isDead) {
            return false;
        }
        if (end.type === "ok" && run.effects.isEmpty) {
            this.output.ok(number, hand.id);
            return true;
        }
        this.answerEnd(number, hand.id, end, run, hello);
        if (end.type === "failed" && end.outcome instanceof Transient && end.outcome.cause instanceof Error) {
            this.log(
                "warn",
                `the handler of event ${hand.id} of ${JSON.stringify(object)} has failed`,
                end.outcome.cause,
            );
        }
        return false;
    }

    private answerEnd(batch: number, id: number, end: Ended, run: Run, hello: Hello): void {
        if (end.type === "cancelled") {
            this.answer(batch, id, "cancelled");
            return;
        }
        if (end.type === "failed") {
            this.fail(batch, id, end.outcome);
            return;
        }
        const line = `{"type":"ok","batch":${batch},"id":${id}${run.effects.members()}}`;
        const bytes = Buffer.byteLength(line);
        if (bytes > hello.lineBytesMax) {
            const why = `the emits and the result need a line of ${bytes} bytes, the limit is ${hello.lineBytesMax}: emit fewer`;
            this.fail(batch, id, new Transient(why));
            return;
        }
        this.output.line(batch, line);
    }

    private fail(batch: number, id: number, outcome: Outcome): void {
        this.answer(batch, id, outcome.type, { error: errorText(outcome), ...outcome.members() });
    }

    private answer(batch: number, id: number, type: string, members: object = {}): void {
        this.output.line(batch, JSON.stringify({ type, batch, id, ...members }));
    }

    private cancel(number: number, id: number): void {
        const inHand = this.batches.get(number);
        if (inHand === undefined) {
            return;
        }
        const current = inHand.batch.events[inHand.at]?.id;
        if (inHand.run !== undefined && current === id) {
            inHand.run.cancel(new Cancelled("the worker has asked to give up the event"));
        } else {
            // The event may begin at any moment. If it is over already, this has no effect.
            inHand.cancelled = id;
        }
    }

    private hand(inHand: InHand, hello: Hello): EventInHand {
        const { batch, at } = inHand;
        const envelope = batch.events[at];
        if (envelope === undefined) {
            throw new RangeError("a batch has no such event");
        }
        const isFirst = at === 0;
        const done = isFirst ? Object.entries(batch.once) : [];
        return {
            ...envelope,
            object: batch.object,
            attempt: isFirst ? batch.attempts + 1 : 1,
            crashes: isFirst ? batch.crashes : 0,
            token: batch.token,
            deadline: new Date(Date.now() + hello.timeoutMs),
            keys: this.keys,
            done: new Map(done.map(([name, value]) => [name, JSON.stringify(value)])),
            raw: () => {
                inHand.raw ??= rawEvents(batch.line);
                return inHand.raw[at] ?? "null";
            },
            store: (name, value) => this.store(inHand, envelope.id, name, value),
        };
    }

    /** Stores a subtask. A batch has one subtask without a reply at a time. */
    private async store(inHand: InHand, id: number, name: string, value: string): Promise<void> {
        const before = inHand.turn;
        let over: () => void = () => undefined;
        inHand.turn = new Promise((resolve) => {
            over = resolve;
        });
        try {
            await before;
            const { number } = inHand.batch;
            const isOpen = !this.isDead && inHand.run?.hand.id === id && !inHand.run.isCancelled;
            if (!isOpen) {
                // The handler has ended without this subtask, or was cancelled. Nobody waits for it any more.
                return new Promise<never>(() => undefined);
            }
            const error = await new Promise<string | undefined>((resolve) => {
                inHand.stored = { id, reply: resolve };
                const begin = JSON.stringify({ type: "once", batch: number, id, name });
                this.output.line(number, `${begin.slice(0, -1)},"value":${value.replace(/[\r\n]/g, " ")}}`);
            });
            if (error !== undefined) {
                throw new Transient(error);
            }
        } finally {
            over();
        }
    }

    /** Lets the program read the worker's lines, if handlers have run for some time without a pause. */
    private async breathe(): Promise<void> {
        if (performance.now() - this.turnBegan > TURN_MS) {
            this.output.flush();
            await new Promise((resolve) => setImmediate(resolve));
            this.turnBegan = performance.now();
        }
    }
}
