/** An emit whose end its producer awaits. */
import { EventFailed } from "../errors.js";
import { checkOptions } from "../options.js";
import type { JsonValue } from "../worker/handlers.js";
import type { Emitted } from "./emitter.js";
import type { EventEnd } from "./end.js";
import type { Named, Waits } from "./waits.js";

/** The default time of a wait, in ms. */
export const WAIT_MS = 30_000;

/** The settings of a wait. */
export interface WaitOptions {
    /** Ends the wait. The event goes on. */
    readonly signal?: AbortSignal | undefined;
}

export const WAIT_OPTIONS = { signal: true } satisfies Record<keyof WaitOptions, true>;

/** The settings of a call. */
export interface CallOptions extends WaitOptions {
    /** The longest wait for the end of the event, in ms. Default: 30,000. */
    readonly timeout?: number | undefined;
}

export const CALL_OPTIONS = { signal: true, timeout: true } satisfies Record<keyof CallOptions, true>;

/** An awaited emit that Redis has acknowledged. */
export class Awaited implements Emitted {
    readonly object: string;
    /** The idempotency key, or a made one. With the name, any process can await the end: `Emitter.endOf`. */
    readonly name: string;
    readonly events: number;
    readonly queued: number;
    /** Whether an emit with this name was done before. Then nothing was queued, and the end is that of its event. */
    readonly repeated: boolean;
    readonly #waits: Waits;

    /** @internal */
    constructor(waits: Waits, { object, name }: Named, { events, queued, repeated }: Emitted) {
        this.#waits = waits;
        this.object = object;
        this.name = name;
        this.events = events;
        this.queued = queued;
        this.repeated = repeated;
    }

    /**
     * Waits until the event has ended, and returns the result. It may be called any number of times.
     *
     * @throws {EventFailed} if the event was not delivered.
     * @throws {WaitError} if its end is not known: the event goes on.
     */
    async wait<T = JsonValue | undefined>(timeout = WAIT_MS, options: WaitOptions = {}): Promise<T> {
        checkOptions("wait", options, WAIT_OPTIONS);
        return resultOf<T>(this, await this.end(timeout, options));
    }

    /** As `wait`, but returns how the event has ended, also if it was not delivered. */
    async end(timeout = WAIT_MS, options: WaitOptions = {}): Promise<EventEnd> {
        checkOptions("end", options, WAIT_OPTIONS);
        return await this.#waits.endOf(this, timeout, options.signal);
    }
}

/** Returns the result of a delivered event. */
export function resultOf<T>({ object, name }: Named, end: EventEnd): T {
    if (end.status !== "completed") {
        throw new EventFailed(object, name, end);
    }
    return end.result as T;
}
