/**
 * The errors of the emitter. The important question about each error is: is it certain that nothing was
 * applied?
 */
import type { EventEnd } from "./emit/end.js";
import type { TooFew } from "./emit/replicas.js";
import type { Scheduled } from "./emit/schedule.js";
import { escapeName, quoted } from "./escape.js";

/** The kind of an error, for a `switch`. */
export type EmitErrorKind =
    | "name"
    | "event"
    | "key"
    | "due"
    | "not_awaitable"
    | "connect"
    | "unknown"
    | "key_reused"
    | "too_large"
    | "full"
    | "out_of_memory"
    | "wrong_type"
    | "refused"
    | "unreplicated"
    | "many"
    | "schedule_many";

/**
 * The reason why an emit, a schedule or a cancel failed. Only after `OutcomeUnknown` and `Unreplicated` it is open
 * whether it was applied. After `WrongType` it was applied in part. After any other error nothing was applied, so
 * the same call may be tried again.
 */
export abstract class EmitError extends Error {
    /** The kind of the error. */
    abstract readonly kind: EmitErrorKind;
    /** Of `call`: the name of its event. If the event is queued, `endOf` waits for its end. */
    declare eventName?: string;

    /** Whether the outcome is unknown: the call may have been applied, or may be applied later. */
    get isUnknown(): boolean {
        return this.kind === "unknown";
    }
}

/** The object's name is invalid. Nothing was sent. */
export class InvalidName extends EmitError {
    override readonly name = "InvalidName";
    readonly kind = "name";
}

/** The event, a subevent or the data is invalid. Nothing was sent. */
export class InvalidEvent extends EmitError {
    override readonly name = "InvalidEvent";
    readonly kind = "event";
}

/** The key of a schedule, or the idempotency key, is invalid. Nothing was sent. */
export class InvalidKey extends EmitError {
    override readonly name = "InvalidKey";
    readonly kind = "key";
}

/** The due time of a schedule is invalid, or more than a hundred years away. Nothing was sent. */
export class InvalidDue extends EmitError {
    override readonly name = "InvalidDue";
    readonly kind = "due";
}

/** An awaited emit has subevents or data. Nothing was sent. */
export class NotAwaitable extends EmitError {
    override readonly name = "NotAwaitable";
    readonly kind = "not_awaitable";

    constructor(readonly object: string) {
        super(
            `an awaited emit has one event and no data; that of ${escapeName(object)} has more: await an event of its own`,
        );
    }
}

/** No connection could be made, so nothing was sent. The next call tries to connect again. */
export class Unconnected extends EmitError {
    override readonly name = "Unconnected";
    readonly kind = "connect";

    constructor(address: string, cause: Error) {
        super(`cannot connect to Redis at ${address}: ${describe(cause)}; nothing was sent`, { cause });
    }
}

/** The idempotency key was used before for other events or data of this object. Nothing was applied. */
export class KeyReused extends EmitError {
    override readonly name = "KeyReused";
    readonly kind = "key_reused";

    constructor(
        readonly object: string,
        readonly key: string,
    ) {
        super(
            `the idempotency key ${quoted(key)} of ${escapeName(object)} was used for another emit; nothing was applied`,
        );
    }
}

/** The most events, and the most bytes of events and data, of an emit by script. */
export const SCRIPT_EVENTS_MAX = 1024;
export const SCRIPT_BYTES_MAX = 1024 * 1024;

/**
 * An emit has too many events or bytes for a script. Emits with an idempotency key, and emits of objects with
 * limits, are scripts. Nothing was sent.
 */
export class TooLarge extends EmitError {
    override readonly name = "TooLarge";
    readonly kind = "too_large";

    constructor(
        readonly object: string,
        readonly events: number,
        readonly bytes: number,
    ) {
        super(
            `an emit for ${escapeName(object)} has ${events} events with ${bytes} bytes; with an idempotency key or ` +
                `limits it has at most ${SCRIPT_EVENTS_MAX} with ${SCRIPT_BYTES_MAX} bytes: split it`,
        );
    }
}

/** The queue or list that has reached a limit. */
export type FullDetail =
    | { readonly what: "queue"; readonly queued: number; readonly events: number; readonly limit: number }
    | { readonly what: "markers"; readonly markers: number; readonly limit: number };

/** A limit of the queues is reached. Nothing was applied. Try again when workers have drained the queue. */
export class Full extends EmitError {
    override readonly name = "Full";
    readonly kind = "full";

    constructor(
        readonly object: string,
        readonly detail: FullDetail,
    ) {
        const why =
            detail.what === "queue"
                ? `the object has ${detail.queued} events queued, and ${detail.events} more would exceed the limit of ${detail.limit}`
                : `there are ${detail.markers} markers, the limit is ${detail.limit}`;
        super(
            `the emit for ${escapeName(object)} was not applied: ${why}; try again later, or see \`seriatim limit list\``,
        );
    }
}

/**
 * The call was sent, but no reply shows its outcome. Either all of it took effect, or nothing did, or it will
 * take effect later. The emitter never repeats such a call by itself, unless it has an idempotency key.
 */
export class OutcomeUnknown extends EmitError {
    override readonly name = "OutcomeUnknown";
    readonly kind = "unknown";

    constructor(
        readonly object: string,
        cause: Error,
    ) {
        super(
            `it is unknown whether the call for ${escapeName(object)} has taken effect: ${describe(cause)}; look before you repeat it`,
            { cause },
        );
    }
}

/** The memory of Redis has reached `maxmemory`. Nothing was applied. */
export class OutOfMemory extends EmitError {
    override readonly name = "OutOfMemory";
    readonly kind = "out_of_memory";

    constructor(readonly object: string) {
        super(
            `Redis is out of memory, the call for ${escapeName(object)} was not applied: raise maxmemory, or wait until the workers have drained the queues`,
        );
    }
}

/**
 * A key of the call has a wrong type. Redis ran the other commands of the transaction. If the key is the object's
 * list of events, no event was queued. If it is the list of markers, the events are queued, but no worker is
 * notified.
 */
export class WrongType extends EmitError {
    override readonly name = "WrongType";
    readonly kind = "wrong_type";

    constructor(
        readonly object: string,
        readonly key: string,
    ) {
        super(
            `${escapeName(key)} has a wrong type, so the call for ${escapeName(object)} took effect only in part; see what else writes that key, and remove it`,
        );
    }
}

/** Redis refused the call, and nothing was applied. */
export class Refused extends EmitError {
    override readonly name = "Refused";
    readonly kind = "refused";

    constructor(
        readonly object: string,
        cause: Error,
    ) {
        super(`Redis refused the call for ${escapeName(object)}, nothing was applied: ${describe(cause)}`, {
            cause,
        });
    }
}

/**
 * The call has taken effect on the master, but too few replicas had it at the end of the wait. Workers deliver the
 * event, unless the master is lost before a replica has it. So the outcome is unknown.
 */
export class Unreplicated extends EmitError {
    override readonly name = "Unreplicated";
    readonly kind = "unreplicated";
    /** The number of replicas that have it. */
    readonly reached: number;
    /** The number of replicas that should have it. */
    readonly wanted: number;
    /** Whether it should be on the disk of the master, but is not. */
    readonly notLocal: boolean;

    constructor(
        readonly object: string,
        { reached, wanted, notLocal }: TooFew,
    ) {
        const disk = notLocal ? ", and it is not on the master's disk" : "";
        super(
            `the emit for ${escapeName(object)} is queued on the master, but only ${reached} of ${wanted} replicas ` +
                `have it${disk}: it is lost if the master is lost now`,
        );
        this.reached = reached;
        this.wanted = wanted;
        this.notLocal = notLocal;
    }

    override get isUnknown(): boolean {
        return true;
    }
}

/** The failure of one object in `emitMany`. */
export interface ObjectFailed {
    readonly object: string;
    /** Position of the first event of this object that is not acknowledged. */
    readonly first: number;
    readonly error: EmitError;
}

/**
 * Some events of `emitMany` are not acknowledged. Positions count from 0. All events of a failed object before
 * its position are acknowledged. Events behind it were not sent, except those in the same transaction.
 */
export class EmitManyError extends EmitError {
    override readonly name = "EmitManyError";
    readonly kind = "many";

    constructor(
        /** Number of acknowledged events. */
        readonly acknowledged: number,
        /** The failed objects, by their positions. */
        readonly failed: readonly ObjectFailed[],
        /** Position from which on nothing was sent, if an error concerned all objects. */
        readonly stopped: number | undefined,
    ) {
        const first = failed[0];
        super(
            `${acknowledged} events are acknowledged, events of ${failed.length} objects are not` +
                (stopped === undefined ? "" : `, nothing was sent from position ${stopped} on`) +
                (first === undefined
                    ? ""
                    : `; the first, at position ${first.first}: ${first.error.message}`),
            { cause: first?.error },
        );
    }

    override get isUnknown(): boolean {
        return this.failed.some(({ error }) => error.isUnknown);
    }
}

/**
 * Some schedules of `scheduleMany` are not acknowledged. Later schedules of the same transaction as the first of them
 * may have failed, too. No later transaction was sent.
 */
export class ScheduleManyError extends EmitError {
    override readonly name = "ScheduleManyError";
    readonly kind = "schedule_many";

    constructor(
        /** The acknowledged schedules, in their order. */
        readonly scheduled: readonly Scheduled[],
        /** The error of the first schedule that is not acknowledged. */
        readonly error: EmitError,
    ) {
        super(`${scheduled.length} schedules are acknowledged, the next ones are not: ${error.message}`, {
            cause: error,
        });
    }

    override get isUnknown(): boolean {
        return this.error.isUnknown;
    }
}

/** An awaited event has ended, but was not delivered. */
export class EventFailed extends Error {
    override readonly name = "EventFailed";

    constructor(
        readonly object: string,
        readonly eventName: string,
        /** The status, the error, the attempts and the results. */
        readonly end: EventEnd,
    ) {
        const why = end.error || "without an error";
        super(`event ${quoted(eventName)} of ${escapeName(object)} is ${end.status || "over"}: ${why}`);
    }
}

/** A wait for the end of an event has failed. The event goes on: wait again by its object and name. */
export abstract class WaitError extends Error {
    /** The kind of the error, for a `switch`. */
    abstract readonly kind: "timed_out" | "end_refused" | "closed";

    constructor(
        readonly object: string,
        readonly eventName: string,
        message: string,
        cause?: unknown,
    ) {
        super(message, { cause });
    }
}

/** The event has not ended in time, or its end is forgotten, or no emit with this name was awaited. */
export class EndTimedOut extends WaitError {
    override readonly name = "EndTimedOut";
    readonly kind = "timed_out";

    constructor(
        object: string,
        eventName: string,
        readonly timeout: number,
        /** The last error, if Redis could not be asked at the end of this time. */
        readonly unreachable: unknown,
    ) {
        const why = unreachable === undefined ? "" : ` (${describe(unreachable)})`;
        super(
            object,
            eventName,
            `no end of event ${quoted(eventName)} of ${escapeName(object)} after ${timeout} ms${why}: ` +
                "wait again, or look at the object with `seriatim inspect`",
            unreachable,
        );
    }
}

/** Redis refuses to tell the end: the user lacks the right to `MGET`. */
export class EndRefused extends WaitError {
    override readonly name = "EndRefused";
    readonly kind = "end_refused";

    constructor(object: string, eventName: string, cause: Error) {
        const what = `the end of event ${quoted(eventName)} of ${escapeName(object)}`;
        const why = `${describe(cause)}; give the user the rights of docs/protocol.md`;
        super(object, eventName, `Redis refuses to tell ${what}: ${why}`, cause);
    }
}

/** The emitter was closed during the wait. */
export class WaitClosed extends WaitError {
    override readonly name = "WaitClosed";
    readonly kind = "closed";

    constructor(object: string, eventName: string) {
        const what = `event ${quoted(eventName)} of ${escapeName(object)}`;
        super(
            object,
            eventName,
            `the emitter was closed during a wait for ${what}; wait again with another emitter`,
        );
    }
}

/** Returns the text of an error in one line. */
export function describe(error: unknown): string {
    const text = error instanceof Error ? error.message || error.name : String(error);
    return text.replace(/[\r\n]+/g, " ");
}
