/**
 * Handles the batches of one worker. The events of a batch run one after another, and several batches run at the
 * same time. The engine knows no pipes: it gets lines and writes lines.
 */
import type { Keys } from "../names.js";
import { type EventInHand, Run } from "./context.js";
import type { Handlers } from "./handlers.js";
import { AllInHand, InHand } from "./in-hand.js";
import type { Log } from "./log.js";
import { Cancelled, errorText, type Outcome, Transient } from "./outcomes.js";
import type { Output } from "./output.js";
import { type Batch, type Envelope, type Hello, type Line, ProtocolError } from "./protocol.js";
import { begin, type Ended, failed, succeeded } from "./run.js";

/** The longest time in ms for which handlers run without a look at the worker's lines. */
const TURN_MS = 20;

/** What the events use of their engine. */
interface Link {
    readonly keys: Keys;
    readonly timeoutMs: number;
    readonly lineBytesMax: number;
    store(inHand: InHand, id: number, name: string, value: string): Promise<void>;
    /** Whether reports have a reader. */
    takesReports(): boolean;
}

const NOTHING_DONE: ReadonlyMap<string, string> = new Map();

/** An event of a batch, and the link to its engine. */
class Hand implements EventInHand {
    readonly event: unknown;
    private readonly at: number;
    private stored: ReadonlyMap<string, string> | undefined = undefined;

    constructor(
        private readonly inHand: InHand,
        private readonly envelope: Envelope,
        /** The time at which the event began, in ms since 1970. */
        private readonly began: number,
        private readonly link: Link,
    ) {
        this.at = inHand.at;
        this.event = envelope.event;
    }

    get id(): number {
        return this.envelope.id;
    }

    get prev(): number {
        return this.envelope.prev;
    }

    get object(): string {
        return this.inHand.batch.object;
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
        return this.inHand.batch.raw(this.at);
    }

    store(name: string, value: string): Promise<void> {
        return this.link.store(this.inHand, this.id, name, value);
    }

    progress(json: string): void {
        if (this.link.takesReports()) {
            this.inHand.answers.progress(this.id, json);
        }
    }

    log(text: string): void {
        if (this.link.takesReports()) {
            this.inHand.answers.log(this.id, text);
        }
    }
}

export class Engine {
    private hello: Hello | undefined;
    private readonly batches = new AllInHand();
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
        if (this.batches.has(batch)) {
            throw new ProtocolError(
                `the worker sent batch ${batch.number} beside another batch of its object or number`,
            );
        }
        const inHand = new InHand(batch, this.output.batch(batch.number));
        this.batches.add(inHand);
        this.changed(this.batches.size);
        if (this.taken.push(inHand) === 1) {
            const { keys, store } = this;
            const { timeoutMs, lineBytesMax } = hello;
            const takesReports = () => hello.takesReports && !this.isDead;
            const link = { keys, timeoutMs, lineBytesMax, store, takesReports };
            // The other lines that were read together with this one come first: one may be a cancel.
            queueMicrotask(() => {
                for (const one of this.taken.splice(0)) {
                    this.begin(one, link);
                }
            });
        }
    }

    /**
     * Begins the event in hand of a batch. Waits for nothing but the handler, because a wait costs as much as a
     * small handler.
     */
    private begin(inHand: InHand, link: Link): void {
        const { batch } = inHand;
        const envelope = batch.events[inHand.at];
        if (envelope === undefined || this.isDead) {
            this.over(inHand);
            return;
        }
        const now = Date.now();
        // The clock may be set back.
        if (now - this.turnBegan > TURN_MS || now < this.turnBegan) {
            this.breathe(() => this.begin(inHand, link));
            return;
        }
        if (inHand.cancelled === envelope.id) {
            this.answer(inHand, envelope.id, "cancelled");
            this.over(inHand);
            return;
        }
        const run = new Run(new Hand(inHand, envelope, now, link));
        inHand.run = run;
        try {
            Promise.resolve(begin(this.handlers, run)).then(
                () => this.end(inHand, link, run, true),
                (thrown: unknown) => this.end(inHand, link, run, false, thrown),
            );
        } catch (thrown) {
            this.end(inHand, link, run, false, thrown);
        }
    }

    /** Ends the event in hand, and goes on with the batch. */
    private end(inHand: InHand, link: Link, run: Run, hasReturned: boolean, thrown?: unknown): void {
        try {
            // The text of a thrown value may be made by code of the program.
            const end = hasReturned ? succeeded(run) : failed(run, thrown);
            inHand.run = undefined;
            if (!this.isDead && this.answerEnd(inHand, run, end, link)) {
                inHand.at += 1;
                this.begin(inHand, link);
                return;
            }
        } catch (error) {
            this.log("error", "the package has failed", error);
        }
        this.over(inHand);
    }

    private over(inHand: InHand): void {
        this.batches.delete(inHand);
        this.changed(this.batches.size);
        if (this.batches.size === 0) {
            for (const resolve of this.whenIdle.splice(0)) {
                resolve();
            }
        }
    }

    /** Answers an event. Returns whether the batch goes on. */
    private answerEnd(inHand: InHand, run: Run, end: Ended, link: Link): boolean {
        const { id, object } = run.hand;
        if (end.type === "ok" && !run.hasEffects) {
            inHand.answers.ok(id);
            return true;
        }
        if (end.type === "cancelled") {
            this.answer(inHand, id, "cancelled");
        } else if (end.type === "failed") {
            const { outcome } = end;
            this.fail(inHand, id, outcome);
            if (outcome instanceof Transient && outcome.cause instanceof Error) {
                const what = `the handler of event ${id} of ${JSON.stringify(object)} has failed`;
                this.log("warn", what, outcome.cause);
            }
        } else {
            const line = `{"type":"ok","batch":${inHand.batch.number},"id":${id}${run.effects.members()}}`;
            const bytes = Buffer.byteLength(line);
            if (bytes > link.lineBytesMax) {
                const why = `the emits and the result need a line of ${bytes} bytes, the limit is ${link.lineBytesMax}: emit fewer`;
                this.fail(inHand, id, new Transient(why));
            } else {
                inHand.answers.line(line);
            }
        }
        return false;
    }

    private fail(inHand: InHand, id: number, outcome: Outcome): void {
        this.answer(inHand, id, outcome.type, { error: errorText(outcome), ...outcome.members() });
    }

    private answer(inHand: InHand, id: number, type: string, members: object = {}): void {
        inHand.answers.line(JSON.stringify({ type, batch: inHand.batch.number, id, ...members }));
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
            const isOpen = !this.isDead && inHand.run?.hand.id === id && !inHand.run.isCancelled;
            if (!isOpen) {
                // The handler has ended without this subtask, or was cancelled. Nobody waits for it any more.
                return new Promise<never>(() => undefined);
            }
            const error = await new Promise<string | undefined>((resolve) => {
                inHand.stored = { id, reply: resolve };
                const begin = JSON.stringify({ type: "once", batch: inHand.batch.number, id, name });
                inHand.answers.line(`${begin.slice(0, -1)},"value":${value.replace(/[\r\n]/g, " ")}}`);
            });
            if (error !== undefined) {
                throw new Transient(error);
            }
        } finally {
            over();
        }
    };

    /** Lets the program read the worker's lines, because handlers have run for some time without a pause. */
    private breathe(then: () => void): void {
        this.output.flush();
        setImmediate(() => {
            this.turnBegan = Date.now();
            then();
        });
    }
}
