/** The end of an awaited event. */
import type { JsonValue } from "../worker/handlers.js";

/** How an awaited event has ended. */
export interface EventEnd {
    /** Only `completed` events were delivered. */
    readonly status: EventStatus;
    /** The id of the event. None if an operator has cancelled the event before a worker took it. */
    readonly id: number | undefined;
    /** The last error. None if the event was delivered. */
    readonly error: string | undefined;
    /** The number of failed attempts. */
    readonly attempts: number;
    /** The results of its handlers, by handler id. None if they have set none. */
    readonly results: Readonly<Record<string, JsonValue>> | undefined;
    /** The result of the only handler with a result; none without one; all by handler id if several have one. */
    readonly result: JsonValue | undefined;
    /** The end as JSON text, because `JSON.parse` loses digits of large numbers. */
    readonly raw: string;
}

/** How an event has ended. Empty if another program has written the end. */
export type EventStatus = "completed" | "completed_with_errors" | "dead" | "cancelled" | "";

/** Reads the value of the key of an end. Returns none if the event has not ended. */
export function readEnd(raw: string): EventEnd | undefined {
    if (raw.startsWith("?")) {
        return undefined;
    }
    const { status, id, error, attempts, results } = members(raw);
    const known = isObject(results) ? (results as Record<string, JsonValue>) : undefined;
    const values = Object.values(known ?? {});
    return {
        status: typeof status === "string" ? (status as EventStatus) : "",
        id: typeof id === "number" && id > 0 ? id : undefined,
        error: typeof error === "string" ? error : undefined,
        attempts: typeof attempts === "number" ? attempts : 0,
        results: known,
        result: values.length === 1 ? values[0] : known,
        raw,
    };
}

function members(raw: string): Record<string, unknown> {
    try {
        const found: unknown = JSON.parse(raw);
        return isObject(found) ? found : {};
    } catch {
        return {};
    }
}

function isObject(value: unknown): value is Record<string, unknown> {
    return typeof value === "object" && value !== null && !Array.isArray(value);
}
