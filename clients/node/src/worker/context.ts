/** The context of a handler: data about its event, and the operations that it can call. */
import type { ScheduleOptions } from "../emit/schedule.js";
import { toJson } from "../event.js";
import type { Keys } from "../names.js";
import { checkNoOptions } from "../options.js";
import { EFFECT_BYTES_MAX, Effects, HandlerEnded, VALUE_BYTES_MAX, WorkerTooOld } from "./effects.js";
import { textMember, typeOf } from "./handlers.js";
import { type Cancelled, Rejected, Transient } from "./outcomes.js";
import { logText, progressJson } from "./reports.js";

/** The most subtasks of one event. */
export const SUBTASKS_MAX = 1000;
const SUBTASK_BYTES_MAX = 256;

/** The event in hand, and the link to its worker. */
export interface EventInHand {
    readonly id: number;
    readonly prev: number;
    readonly object: string;
    readonly event: unknown;
    /** The number of the attempt, from 1. */
    readonly attempt: number;
    readonly crashes: number;
    readonly token: string | undefined;
    /** The time at which the worker asks to give up the event. */
    readonly deadline: Date;
    readonly keys: Keys;
    /** The subtasks that are done, with their values as JSON. */
    readonly done: ReadonlyMap<string, string>;
    raw(): string;
    /** Stores that a subtask is done, with its value as JSON. */
    store(name: string, value: string): Promise<void>;
    /** Reports a progress, as JSON. */
    progress(json: string): void;
    /** Reports a line for the log of the worker. */
    log(text: string): void;
}

/** The values with which a store of the handler can refuse late writes. */
export interface Fence {
    /** The token of the worker process. */
    readonly token: string;
    /** The event's id. Within an object ids only grow. */
    readonly id: number;
}

/** The state of a run, for the code that runs the handler. */
export class Run {
    // Most handlers use few of these, so each is made when it is used first.
    private made: Effects | undefined = undefined;
    private controller: AbortController | undefined = undefined;
    private subtasks: Subtasks | undefined = undefined;
    private reason: Cancelled | undefined = undefined;
    private isOver = false;

    constructor(readonly hand: EventInHand) {}

    get effects(): Effects {
        if (this.made === undefined) {
            const bytes = [...this.hand.done.values()].reduce(
                (sum, json) => sum + Buffer.byteLength(json),
                0,
            );
            this.made = new Effects(this.hand.keys, bytes);
            if (this.isOver) {
                this.made.end();
            }
        }
        return this.made;
    }

    /** Whether the handler has done anything that takes effect with its success. */
    get hasEffects(): boolean {
        return this.made !== undefined && !this.made.isEmpty;
    }

    /** The handler has ended. */
    end(): void {
        this.isOver = true;
        this.made?.end();
    }

    get isCancelled(): boolean {
        return this.reason !== undefined;
    }

    get signal(): AbortSignal {
        this.controller ??= new AbortController();
        const { signal } = this.controller;
        if (this.reason !== undefined && !signal.aborted) {
            this.controller.abort(this.reason);
        }
        return signal;
    }

    cancel(reason: Cancelled): void {
        if (this.reason !== undefined) {
            return;
        }
        this.reason = reason;
        for (const cancel of this.subtasks?.cancels ?? []) {
            cancel(reason);
        }
        this.controller?.abort(reason);
    }

    progress(value: unknown): void {
        const json = progressJson(value);
        this.checkOpen();
        this.hand.progress(json);
    }

    log(text: string): void {
        const kept = logText(text);
        this.checkOpen();
        this.hand.log(kept);
    }

    private checkOpen(): void {
        if (this.isOver) {
            throw new HandlerEnded("the handler has ended; it must report before it ends");
        }
    }

    checkWorker(): void {
        if (this.hand.token === undefined) {
            throw new WorkerTooOld();
        }
    }

    /** Runs a subtask, unless it is done. Returns its value as JSON. */
    async once(name: string, run: () => unknown): Promise<string> {
        this.checkWorker();
        this.effects.checkOpen("run its subtasks");
        const bytes = typeof name === "string" ? Buffer.byteLength(name) : 0;
        if (bytes < 1 || bytes > SUBTASK_BYTES_MAX || !name.isWellFormed()) {
            throw new Rejected(`the name of a subtask has 1 to ${SUBTASK_BYTES_MAX} bytes, not ${bytes}`);
        }
        this.subtasks ??= new Subtasks(this.hand.done);
        const { subtasks } = this;
        const { names, turns } = subtasks;
        if (!names.has(name) && names.size >= SUBTASKS_MAX) {
            throw new Transient(
                `the handlers of one event name at most ${SUBTASKS_MAX} subtasks, and this one more was not run: guard several steps by ` +
                    `one subtask, or emit events whose handlers do the rest; subtasks that are done stay done; refused: ${JSON.stringify(name)}`,
            );
        }
        names.add(name);
        const turn = (turns.get(name) ?? Promise.resolve()).then(() => this.inTurn(subtasks, name, run));
        turns.set(
            name,
            turn.catch(() => undefined),
        );
        return await turn;
    }

    private async inTurn(subtasks: Subtasks, name: string, run: () => unknown): Promise<string> {
        const stored = subtasks.done.get(name);
        if (stored !== undefined) {
            return stored;
        }
        if (this.reason !== undefined) {
            throw this.reason;
        }
        const value = await run();
        const refused = (why: string) =>
            new Rejected(`the subtask ${JSON.stringify(name)} has run, but its value ${why}`);
        const json = toJson(value ?? null, VALUE_BYTES_MAX, (why) =>
            refused(
                why.bytes === undefined
                    ? `${why.verb} ${why.detail}`
                    : `has ${why.bytes} bytes of JSON, the limit is ${VALUE_BYTES_MAX}; keep it in a store, and return a reference`,
            ),
        );
        if (!this.effects.takeValue(Buffer.byteLength(json))) {
            throw refused(
                `does not fit: the emits, results and values of one event have at most ${EFFECT_BYTES_MAX} bytes together`,
            );
        }
        await this.unlessCancelled(subtasks, this.hand.store(name, json));
        subtasks.done.set(name, json);
        return json;
    }

    /** Awaits a reply of the worker, which may not come after a cancel. */
    private async unlessCancelled({ cancels }: Subtasks, reply: Promise<void>): Promise<void> {
        let cancel: ((reason: Cancelled) => void) | undefined;
        const cancelled = new Promise<never>((_, reject) => {
            cancel = reject;
            cancels.add(reject);
            if (this.reason !== undefined) {
                reject(this.reason);
            }
        });
        try {
            await Promise.race([reply, cancelled]);
        } finally {
            cancels.delete(cancel as (reason: Cancelled) => void);
        }
    }
}

/** The subtasks of a run. */
class Subtasks {
    readonly done: Map<string, string>;
    readonly names: Set<string>;
    /** Subtasks under way, so that two calls with one name run one after the other. */
    readonly turns = new Map<string, Promise<unknown>>();
    /** What a cancel calls. */
    readonly cancels = new Set<(reason: Cancelled) => void>();

    constructor(done: ReadonlyMap<string, string>) {
        this.done = new Map(done);
        this.names = new Set(done.keys());
    }
}

/** The context of a handler for one event. */
export class HandlerContext {
    readonly #run: Run;

    /** @internal */
    constructor(run: Run) {
        this.#run = run;
    }

    /** The event's id: a whole number below 2^53. */
    get id(): number {
        return this.#run.hand.id;
    }

    /** The id of the object's event that was delivered last before this one; 0 if there is none. */
    get prev(): number {
        return this.#run.hand.prev;
    }

    /** The object. */
    get object(): string {
        return this.#run.hand.object;
    }

    /** The event's type: its member `type`, if that is a string. */
    get type(): string | undefined {
        return typeOf(this.#run.hand.event);
    }

    /** The number of this attempt at the event, from 1. Only failures count. */
    get attempt(): number {
        return this.#run.hand.attempt;
    }

    /** The number of worker processes and programs that have died with the event in hand. */
    get crashes(): number {
        return this.#run.hand.crashes;
    }

    /** The event as text, byte for byte as it was emitted, except that line ends are blanks. */
    get raw(): string {
        return this.#run.hand.raw();
    }

    /** The token of the worker process. Empty if the worker is too old to tell it. */
    get token(): string {
        return this.#run.hand.token ?? "";
    }

    /** The values with which a store of the handler can refuse late and repeated writes. */
    get fence(): Fence {
        return { token: this.token, id: this.id };
    }

    /** The W3C trace context that the event has, if it has one. */
    get traceparent(): string | undefined {
        return textMember(this.#run.hand.event, "traceparent");
    }

    /** The `tracestate` beside `traceparent`. */
    get tracestate(): string | undefined {
        return textMember(this.#run.hand.event, "tracestate");
    }

    /** The time at which the worker asks to give up the event. */
    get deadline(): Date {
        return this.#run.hand.deadline;
    }

    /**
     * A signal that is aborted if the time is over, the lease is lost, or the worker stops at once. Work behind that
     * moment is in vain: the event comes again, also if the handler then succeeds.
     */
    get signal(): AbortSignal {
        return this.#run.signal;
    }

    /** Whether `signal` is aborted. */
    get cancelled(): boolean {
        return this.#run.isCancelled;
    }

    /** Emits an event with the success of the handler. It is queued once, in the step that ends the handler's event. */
    emit(object: string, event: unknown): void;
    emit(object: string, event: unknown, options?: unknown): void {
        checkNoOptions(
            "cx.emit",
            options,
            "its event is queued exactly once, with the success of the handler; cx.schedule takes a time and a key",
        );
        this.#run.checkWorker();
        this.#run.effects.emit(object, event);
    }

    /** Schedules an event with the success of the handler. `after` counts from the end of the handler's event. Returns the key. */
    schedule(object: string, event: unknown, options: ScheduleOptions = {}): string {
        this.#run.checkWorker();
        return this.#run.effects.schedule(object, event, options);
    }

    /** Cancels a schedule with the success of the handler. Cancels take effect before all schedules of the handler. */
    cancel(object: string, key: string): void {
        this.#run.checkWorker();
        this.#run.effects.cancel(object, key);
    }

    /** Sets the result of the handler, for the event log: at most 64 KiB of JSON. A later call replaces it. */
    result(value: unknown): void {
        this.#run.checkWorker();
        this.#run.effects.setResult(value);
    }

    /**
     * Reports how far the handler is, at most 1 KiB of JSON, for people: `seriatim inspect` shows the last one. May be
     * called often. A report is advice: it can be lost, and ends with the run of the handler.
     */
    progress(value: unknown): void {
        this.#run.progress(value);
    }

    /**
     * Adds a line to the log of the worker, with the object and the id. `seriatim inspect` shows the last ten. The
     * first 1,000 bytes are kept. Of lines that come faster than the worker reads, the last 100 are kept.
     */
    log(text: string): void {
        this.#run.log(text);
    }

    /**
     * Runs a subtask, and returns its value as JSON has it. If the subtask is done, also in an earlier run, does not
     * run it, and returns the stored value. Do not emit in a subtask: if the handler fails later, the subtask does
     * not run again, and its emits are lost.
     */
    async once<T>(name: string, run: () => T | Promise<T>): Promise<T> {
        return JSON.parse(await this.#run.once(name, run)) as T;
    }
}
