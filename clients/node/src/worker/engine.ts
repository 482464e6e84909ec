/**
 * Handles the batches of one worker. The events of a batch run one after another, and several batches run at the
 * same time. The engine knows no pipes: it gets lines and writes lines.
 */
import type { Keys } from "../names.js";
import { type EventInHand, Run } from "./context.js";
import type { Handlers } from "./handlers.js";
import type { Log } from "./log.js";
import { Cancelled, errorText, type Outcome, Transient } from "./outcomes.js";
import type { Output } from "./output.js";
import { type Batch, type Envelope, type Hello, type Line, ProtocolError } from "./protocol.js";
import { rawEvents } from "./raw.js";
import { begin, type Ended, failed, succeeded } from "./run.js";

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
    turn: Promise<void> | undefined;
}

/** What the events use of their engine. */
interface Link {
    readonly keys: Keys;
    readonly timeoutMs: number;
    store(inHand: InHand, id: number, name: string, value: string): Promise<void>;
    progress(batch: number, id: number, json: string): void;
    log(batch: number, id: number, text: string): void;
}

const NOTHING_DONE: ReadonlyMap<string, string> = new Map();

/** An event of a batch, and the link to its engine. */
class Hand implements EventInHand {
    readonly id: number;
    readonly prev: number;
    readonly object: string;
    readonly event: unknown;
    private readonly at: number;
    private stored: ReadonlyMap<string, string> | undefined = undefined;

    constructor(
        private readonly inHand: InHand,
        envelope: Envelope,
        /** The time at which the event began, in ms since 1970. */
        private readonly began: number,
        private readonly link: Link,
    ) {
        this.at = inHand.at;
        this.id = envelope.id;
        this.prev = envelope.prev;
        this.object = inHand.batch.object;
        this.event = envelope.event;
    }

    // The members of the batch are about its first event.
    get attempt(): number {
        return this.at === 0 ? this.inHand.batch.attempts + 1 : 1;
    }

    get crashes(): number {
        return this.at === 0 ? this.inHand.batch.crashes : 0;
    }

    get token(): string | undefined {
        return this.inHand.batch.token;
    }

    get deadline(): Date {
        return new Date(this.began + this.link.timeoutMs);
    }

    get keys(): Keys {
        return this.link.keys;
    }

    get done(): ReadonlyMap<string, string> {
        if (this.at > 0) {
            return NOTHING_DONE;
        }
        const { once } = this.inHand.batch;
        this.stored ??= new Map(Object.entries(once).map(([name, value]) => [name, JSON.stringify(value)]));
        return this.stored;
    }

    raw(): string {
        this.inHand.raw ??= rawEvents(this.inHand.batch.line);
        return this.inHand.raw[this.at] ?? "null";
    }

    store(name: string, value: string): Promise<void> {
        return this.link.store(this.inHand, this.id, name, value);
    }

    progress(json: string): void {
        this.link.progress(this.inHand.batch.number, this.id, json);
    }

    log(text: string): void {
        this.link.log(this.inHand.batch.number, this.id, text);
    }
}

export class Engine {
    private hello: Hello | undefined;
    private readonly batches = new Map<number, InHand>();
    /** The objects of these batches. */
    private readonly objects = new Set<string>();
    /** The batches that have not begun. */
    private readonly taken: InHand[] = [];
    private isDead = false;
    private turnBegan = Date.now();
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
        this.turnBegan = Date.now();
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
        if (this.batches.has(batch.number) || this.objects.has(batch.object)) {
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
            turn: undefined,
        };
        this.batches.set(batch.number, inHand);
        this.objects.add(batch.object);
        this.changed(this.batches.size);
        if (this.taken.push(inHand) === 1) {
            // The other lines that were read together with this one come first: one may be a cancel.
            queueMicrotask(() => {
                const { keys, store, reportProgress: progress, reportLine: log } = this;
                const link = { keys, timeoutMs: hello.timeoutMs, store, progress, log };
                for (const one of this.taken.splice(0)) {
                    void this.handle(one, link, hello);
                }
            });
        }
    }

    /**
     * Runs the events of a batch one after another, and answers. Waits for nothing but the handlers, because a wait
     * costs as much as a small handler.
     */
    private async handle(inHand: InHand, link: Link, hello: Hello): Promise<void> {
        const { number, object, events } = inHand.batch;
        try {
            for (const envelope of events) {
                let now = Date.now();
                // The clock may be set back.
                if (now - this.turnBegan > TURN_MS || now < this.turnBegan) {
                    await this.breathe();
                    now = Date.now();
                }
                if (this.isDead) {
                    return;
                }
                if (inHand.cancelled === envelope.id) {
                    this.answer(number, envelope.id, "cancelled");
                    return;
                }
                const run = new Run(new Hand(inHand, envelope, now, link));
                inHand.run = run;
                let end: Ended;
                try {
                    await begin(this.handlers, run);
                    end = succeeded(run);
                } catch (thrown) {
                    end = failed(run, thrown);
                }
                inHand.run = undefined;
                if (this.isDead) {
                    return;
                }
                if (end.type !== "ok" || run.hasEffects) {
                    this.answerEnd(inHand, envelope.id, end, run, hello);
                    return;
                }
                this.output.ok(number, envelope.id);
                inHand.at += 1;
            }
        } catch (error) {
            this.log("error", "the package has failed", error);
        } finally {
            this.batches.delete(number);
            this.objects.delete(object);
            this.changed(this.batches.size);
            if (this.batches.size === 0) {
                for (const resolve of this.whenIdle.splice(0)) {
                    resolve();
                }
            }
        }
    }

    /** Answers an event that is the last one of its batch. */
    private answerEnd(inHand: InHand, id: number, end: Ended, run: Run, hello: Hello): void {
        const { number: batch, object } = inHand.batch;
        if (end.type === "cancelled") {
            this.answer(batch, id, "cancelled");
            return;
        }
        if (end.type === "failed") {
            const { outcome } = end;
            this.fail(batch, id, outcome);
            if (outcome instanceof Transient && outcome.cause instanceof Error) {
                const what = `the handler of event ${id} of ${JSON.stringify(object)} has failed`;
                this.log("warn", what, outcome.cause);
            }
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

    /** Stores a subtask. A batch has one subtask without a reply at a time. */
    private readonly store = async (
        inHand: InHand,
        id: number,
        name: string,
        value: string,
    ): Promise<void> => {
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
    };

    private readonly reportProgress = (batch: number, id: number, json: string): void => {
        if (!this.isDead) {
            this.output.progress(batch, id, json);
        }
    };

    private readonly reportLine = (batch: number, id: number, text: string): void => {
        if (!this.isDead) {
            this.output.log(batch, id, text);
        }
    };

    /** Lets the program read the worker's lines, because handlers have run for some time without a pause. */
    private async breathe(): Promise<void> {
        this.output.flush();
        await new Promise((resolve) => setImmediate(resolve));
        this.turnBegan = Date.now();
    }
}
