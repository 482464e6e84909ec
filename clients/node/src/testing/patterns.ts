/** Emitted events, and patterns that match them in tests. */
import { isDeepStrictEqual } from "node:util";

/** An event that a handler has emitted. */
export interface EmittedEvent {
    readonly object: string;
    readonly event: unknown;
    /** The event as text, as it is queued. */
    readonly raw: string;
}

/** An event that a handler has scheduled. */
export interface ScheduledEvent extends EmittedEvent {
    /** The given key, or a new one that begins with `-`. */
    readonly key: string;
    /** The time at which the event is due, in ms since 1970. */
    readonly atMs?: number;
    /** The time from the end of the handler's event until the event is due, in ms. */
    readonly afterMs?: number;
    readonly keep: "time" | "first" | undefined;
}

/**
 * A pattern of events: a JSON value, or a function. An event matches an object if it has all members of the
 * pattern; it may have more. It matches another value if it is equal.
 */
export type Pattern = unknown | ((event: never) => boolean);

/** Returns the first event of the object that matches. */
export function find<T extends EmittedEvent>(
    events: readonly T[],
    object: string,
    pattern: Pattern,
): T | undefined {
    return events.find((one) => one.object === object && matches(one.event, pattern));
}

function matches(event: unknown, pattern: Pattern): boolean {
    return typeof pattern === "function" ? pattern(event) === true : has(event, pattern);
}

function has(event: unknown, wanted: unknown): boolean {
    if (!isObject(wanted) || !isObject(event)) {
        return isDeepStrictEqual(event, wanted);
    }
    return Object.entries(wanted).every(
        ([name, value]) => Object.hasOwn(event, name) && has(event[name], value),
    );
}

function isObject(value: unknown): value is Record<string, unknown> {
    return typeof value === "object" && value !== null && !Array.isArray(value);
}

/** Returns the pattern as text. */
export function show(pattern: Pattern): string {
    return typeof pattern === "function" ? "an event of which the function is true" : JSON.stringify(pattern);
}
