/**
 * Tests of handlers, without Redis and without the program `seriatim`. The handlers run by the same code as in a
 * worker.
 */
import { AssertionError } from "node:assert";
import { EVENT_BYTES_MAX, toJson } from "../event.js";
import { checkOptions } from "../options.js";
import { type EventInHand, Run } from "../worker/context.js";
import { Cancelled, errorText } from "../worker/outcomes.js";
import { toEnd } from "../worker/run.js";
import type { Worker } from "../worker/worker.js";
import { type EmittedEvent, find, type Pattern, type ScheduledEvent, show } from "./patterns.js";

export type { EmittedEvent, Pattern, ScheduledEvent } from "./patterns.js";

/** The event of a test. */
export interface TestEvent {
    /** The object. Default: `test:1`. */
    readonly object?: string | undefined;
    /** The event: a JSON value, or a `RawJson`. */
    readonly event: unknown;
    /** The event's id. Default: 1. */
    readonly id?: number | undefined;
    /** The id of the object's event before it. Default: 0. */
    readonly prev?: number | undefined;
    /** The number of the attempt. Default: 1. */
    readonly attempt?: number | undefined;
    /** The number of crashes. Default: 0. */
    readonly crashes?: number | undefined;
}

const TEST_EVENT = {
    object: true,
    event: true,
    id: true,
    prev: true,
    attempt: true,
    crashes: true,
} satisfies Record<keyof TestEvent, true>;

/** The settings of one run. */
export interface RunOptions {
    /** Cancels the run, as a worker does that loses its lease. */
    readonly signal?: AbortSignal | undefined;
    /** Cancels the run after this time, in ms. */
    readonly timeout?: number | undefined;
}

const RUN_OPTIONS = { signal: true, timeout: true } satisfies Record<keyof RunOptions, true>;

/** The outcome of a run. `cancelled`: the run was cancelled before the handler had ended. */
export type RanOutcome =
    | "delivered"
    | "transient"
    | "rejected"
    | "unknown"
    | "postponed"
    | "unavailable"
    | "cancelled";

/**
 * Runs the handlers of a worker. Subtasks under `cx.once` that are done stay done for the same object and id, as they
 * do over retries and crashes.
 */
export class HandlerTest {
    private readonly worker: Worker;
    private readonly done = new Map<string, Map<string, string>>();

    /** @param worker The worker whose handlers are tested. It is not started. */
    constructor(worker: Worker) {
        this.worker = worker;
    }

    /** Forgets the subtasks of all events. */
    forget(): void {
        this.done.clear();
    }

    /** Runs the handler of an event, and returns its outcome and its effects. */
    async run(test: TestEvent, options: RunOptions = {}): Promise<Ran> {
        checkOptions("HandlerTest.run", test, TEST_EVENT);
        checkOptions("HandlerTest.run", options, RUN_OPTIONS);
        const { object = "test:1", id = 1, prev = 0, attempt = 1, crashes = 0 } = test;
        const { keys, handlers } = this.worker;
        const json = toJson(test.event, EVENT_BYTES_MAX);
        const place = `${id}\n${keys.object(object)}`;
        const done = this.done.get(place) ?? new Map<string, string>();
        this.done.set(place, done);
        let progress: string | undefined;
        const log: string[] = [];
        const hand: EventInHand = {
            id,
            prev,
            object,
            event: JSON.parse(json),
            attempt,
            crashes,
            token: "test",
            deadline: new Date(Date.now() + (options.timeout ?? 300_000)),
            keys,
            done: new Map(done),
            raw: () => json.replace(/[\r\n]/g, " "),
            store: async (name, value) => {
                done.set(name, value);
            },
            progress: (json) => {
                progress = json;
            },
            log: (text) => {
                log.push(text);
            },
        };
        const run = new Run(hand);
        const ended = toEnd(handlers, run);
        const cancel = () => run.cancel(new Cancelled("the test has cancelled the run"));
        const timer = options.timeout === undefined ? undefined : setTimeout(cancel, options.timeout);
        options.signal?.addEventListener("abort", cancel, { once: true });
        if (options.signal?.aborted) {
            cancel();
        }
        const end = await ended;
        clearTimeout(timer);
        options.signal?.removeEventListener("abort", cancel);
        const isOk = end.type === "ok";
        const { emits, schedules, cancels, result } = run.effects;
        const event = (one: { object: string; event: string }): EmittedEvent => ({
            object: one.object,
            event: JSON.parse(one.event),
            raw: one.event,
        });
        return new Ran(
            end.type === "failed" ? end.outcome.type : isOk ? "delivered" : "cancelled",
            end.type === "failed" ? errorText(end.outcome) : undefined,
            end.type === "failed" ? end.outcome : undefined,
            isOk ? emits.map(event) : [],
            isOk ? schedules.map((one) => ({ ...event(one), key: one.key, ...one.due, keep: one.keep })) : [],
            isOk ? [...cancels] : [],
            isOk && result !== undefined ? JSON.parse(result) : undefined,
            Object.fromEntries([...done].map(([name, value]) => [name, JSON.parse(value)])),
            progress === undefined ? undefined : JSON.parse(progress),
            log,
            `event ${id} of ${object}`,
        );
    }
}

/** The outcome and the effects of one run. A method `assert…` throws if it does not hold, and shows all of the run. */
export class Ran {
    constructor(
        readonly outcome: RanOutcome,
        /** The text of the error, as a worker keeps it. */
        readonly error: string | undefined,
        /** The error itself. Its `cause` is the error that the handler has thrown, if that was no outcome. */
        readonly thrown: Error | undefined,
        /** The events that the end of the event queues. Empty unless it was delivered. */
        readonly emitted: readonly EmittedEvent[],
        /** The schedules of the handler. */
        readonly scheduled: readonly ScheduledEvent[],
        /** The schedules that the handler has cancelled. */
        readonly cancelled: readonly { readonly object: string; readonly key: string }[],
        /** The result of the handler. */
        readonly result: unknown,
        /** The subtasks that are done, also in earlier runs, with their values. */
        readonly once: Readonly<Record<string, unknown>>,
        /** The last progress that the handler has reported, whatever its outcome. */
        readonly progress: unknown,
        /** The lines that the handler has logged by `cx.log`, whatever its outcome. */
        readonly log: readonly string[],
        private readonly name: string,
    ) {}

    /** Asserts that the handler has succeeded. */
    assertDelivered(): this {
        return this.check(this.outcome === "delivered", "the event was not delivered", this.assertDelivered);
    }

    /** Asserts that the handler has failed, and that the text of its error has this part. */
    assertFailed(errorPart = ""): this {
        return this.check(
            this.error?.includes(errorPart) === true,
            `the handler has not failed with ${JSON.stringify(errorPart)}`,
            this.assertFailed,
        );
    }

    /** Asserts the outcome. */
    assertOutcome(outcome: RanOutcome): this {
        return this.check(this.outcome === outcome, `the outcome is not ${outcome}`, this.assertOutcome);
    }

    /** Asserts that an event like this was emitted for the object. Returns the first such event. */
    assertEmitted(object: string, pattern: Pattern): EmittedEvent {
        const found = find(this.emitted, object, pattern);
        this.check(
            found !== undefined,
            `no event was emitted for ${object} like ${show(pattern)}`,
            this.assertEmitted,
        );
        return found as EmittedEvent;
    }

    /** Asserts that an event like this was scheduled for the object. Returns the first such schedule. */
    assertScheduled(object: string, pattern: Pattern): ScheduledEvent {
        const found = find(this.scheduled, object, pattern);
        this.check(
            found !== undefined,
            `no event was scheduled for ${object} like ${show(pattern)}`,
            this.assertScheduled,
        );
        return found as ScheduledEvent;
    }

    /** Asserts that no event like this was emitted for the object. */
    assertNotEmitted(object: string, pattern: Pattern): this {
        const isFree = find(this.emitted, object, pattern) === undefined;
        return this.check(
            isFree,
            `an event was emitted for ${object} like ${show(pattern)}`,
            this.assertNotEmitted,
        );
    }

    /** Asserts that no event was emitted or scheduled. */
    assertNothingEmitted(): this {
        const isEmpty = this.emitted.length + this.scheduled.length === 0;
        return this.check(isEmpty, "something was emitted", this.assertNothingEmitted);
    }

    private check(holds: boolean, message: string, stackStartFn: (...args: never[]) => unknown): this {
        if (!holds) {
            throw new AssertionError({
                message: `${message}\n${this.describe()}`,
                stackStartFn: stackStartFn as () => void,
            });
        }
        return this;
    }

    private describe(): string {
        const lines = [`${this.name}: ${this.outcome}${this.error === undefined ? "" : `, ${this.error}`}`];
        for (const { object, raw } of this.emitted) {
            lines.push(`  emitted    ${object}  ${raw}`);
        }
        for (const { object, raw, key } of this.scheduled) {
            lines.push(`  scheduled  ${object}  ${raw}  key ${JSON.stringify(key)}`);
        }
        for (const { object, key } of this.cancelled) {
            lines.push(`  cancelled  ${object}  key ${JSON.stringify(key)}`);
        }
        if (this.result !== undefined) {
            lines.push(`  result     ${JSON.stringify(this.result)}`);
        }
        for (const text of this.log) {
            lines.push(`  log        ${text}`);
        }
        if (this.progress !== undefined) {
            lines.push(`  progress   ${JSON.stringify(this.progress)}`);
        }
        return lines.join("\n");
    }
}
