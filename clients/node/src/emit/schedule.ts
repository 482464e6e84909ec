/**
 * Schedules: events that are queued later. A schedule is one plain transaction. Plain commands replace and cancel it
 * until a worker takes the event. After that, the script `cancel` can end the event while it waits for a retry.
 */
import { InvalidDue, OutcomeUnknown } from "../errors.js";
import { toJson } from "../event.js";
import { checkKey, isChosen, type Keys, uniqueKey } from "../names.js";
import type { Command, Link } from "./link.js";
import { about, number, type Reply } from "./reply.js";
import { CANCEL, callScript } from "./scripts.js";

/** The longest time until an event is due, in ms: a hundred years. */
const DUE_MAX_MS = 36_600 * 24 * 3600 * 1000;
/** A schedule that is due within this time, in ms, wakes a worker. */
const WAKE_MS = 60_000;
/** The largest time, in ms since 1970. */
const TIME_MAX_MS = 2 ** 53 - 1;
/** When the event of a schedule is queued, the score becomes this number minus the time in µs. */
const QUEUED = -1e15;

/** The time of a schedule, its key, and the treatment of an earlier schedule with this key. */
export interface ScheduleOptions {
    /** The event is due after this time, in ms. The time counts from now, by Redis' clock. */
    readonly after?: number | undefined;
    /** The event is due at this time: a `Date`, or ms since 1970. */
    readonly at?: Date | number | undefined;
    /**
     * A key, unique within the object: 1 to 256 bytes without control characters. Another schedule with this key
     * replaces this one, and `cancel` cancels it.
     */
    readonly key?: string | undefined;
    /** What to keep of an earlier schedule with this key: its `time`, or all of it (`first`). Default: nothing. */
    readonly keep?: "time" | "first" | undefined;
}

/** A schedule that Redis has acknowledged. */
export interface Scheduled {
    /** The key: the given one, or a new one that begins with `-`. */
    readonly key: string;
    /** The time at which the event is due, in ms since 1970. */
    readonly dueMs: number;
    /**
     * The effect on an earlier schedule with this key. `running`: a worker has an event with this key, which goes
     * on, and one more event comes.
     */
    readonly change: "new" | "replaced" | "kept" | "running";
}

/** The effect of a cancel. `running`: a worker has the event, and it goes on. */
export type Cancelled = "cancelled" | "running" | "not_found";

/** When an event is due: at a time, or after one. Whole ms. */
export type Due = { readonly atMs: number } | { readonly afterMs: number };

/** Checks the time of a schedule. */
export function checkDue({ after, at }: Pick<ScheduleOptions, "after" | "at">): Due {
    if (after !== undefined && at !== undefined) {
        throw new InvalidDue("a schedule has after or at, not both");
    }
    const given = after ?? (at instanceof Date ? at.getTime() : (at ?? 0));
    if (typeof given !== "number" || Number.isNaN(given)) {
        throw new InvalidDue(`the due time ${String(after ?? at)} is neither a number of ms nor a Date`);
    }
    if (after !== undefined && given < 0) {
        throw new InvalidDue(`an event is due after 0 ms or more, not after ${given} ms`);
    }
    // Rounded up, so that no event is early.
    const ms = Math.ceil(Math.max(given, 0));
    if (ms > (after === undefined ? Date.now() : 0) + DUE_MAX_MS) {
        throw new InvalidDue(
            "an event is due at most 100 years from now; is a number in ms where seconds are expected?",
        );
    }
    return after === undefined ? { atMs: ms } : { afterMs: ms };
}

/** Checks `keep` of a schedule. */
export function checkKeep(keep: ScheduleOptions["keep"]): ScheduleOptions["keep"] {
    if (keep !== undefined && keep !== "time" && keep !== "first") {
        throw new TypeError(`keep is ${String(keep)}; it is "time" or "first"`);
    }
    return keep;
}

export class Scheduler {
    constructor(
        private readonly link: Link,
        private readonly keys: Keys,
        private readonly eventBytesMax: number,
    ) {}

    async schedule(name: string, value: unknown, options: ScheduleOptions): Promise<Scheduled> {
        const object = this.keys.object(name);
        const event = toJson(value, this.eventBytesMax);
        const key = options.key === undefined ? uniqueKey() : checkKey(options.key);
        const keep = checkKeep(options.keep);
        const due = checkDue(options);
        const dueMs = Math.min(
            "atMs" in due ? due.atMs : (await this.redisMs(object)) + due.afterMs,
            TIME_MAX_MS,
        );
        const wakes = "atMs" in due ? due.atMs < Date.now() + WAKE_MS : due.afterMs < WAKE_MS;

        const [hash, set, member] = [this.keys.scheduledOf(object), this.keys.scheduled, `${object}\n${key}`];
        const commands: Command[] = [
            [keep === "first" ? "HSETNX" : "HSET", hash, key, event],
            ["ZADD", set, ...(keep === undefined ? [] : ["NX"]), dueMs, member],
        ];
        if (keep !== undefined) {
            commands.push(["ZSCORE", set, member]);
        }
        if (isChosen(key)) {
            commands.push(["GET", this.keys.taken(object)]);
        }
        if (wakes) {
            commands.push(["ZADD", this.keys.wake, 0, "wake"]);
        }
        const replies = await this.transact(object, commands);
        const isNew = number(object, replies[0], hash) > 0;
        number(object, replies[1], set);
        const kept = keep === undefined ? dueMs : dueOf(object, replies[2]);
        const id = isChosen(key) ? takenId(replies[keep === undefined ? 2 : 3], key) : undefined;
        let change: Scheduled["change"] = isNew ? "new" : keep === "first" ? "kept" : "replaced";
        if (id !== undefined && keep === "first") {
            change = isNew ? "running" : change;
        } else if (id !== undefined) {
            // The schedule is stored by now. The former event with its key may still wait for a retry.
            const ended = await this.cancelTaken(object, key, id);
            change = ended === "running" ? "running" : ended === "cancelled" ? "replaced" : change;
        }
        return { key, dueMs: kept, change };
    }

    async cancel(name: string, givenKey: string): Promise<Cancelled> {
        const [object, key] = [this.keys.object(name), checkKey(givenKey)];
        const [hash, set] = [this.keys.scheduledOf(object), this.keys.scheduled];
        const commands: Command[] = [
            ["HDEL", hash, key],
            ["ZREM", set, `${object}\n${key}`],
        ];
        if (isChosen(key)) {
            commands.push(["GET", this.keys.taken(object)]);
        }
        const replies = await this.transact(object, commands);
        const removed = number(object, replies[0], hash) + number(object, replies[1], set);
        const wasThere = removed > 0 ? "cancelled" : "not_found";
        const id = takenId(replies[2], key);
        const ended = id === undefined ? "absent" : await this.cancelTaken(object, key, id);
        return ended === "absent" ? wasThere : ended;
    }

    private async transact(object: string, commands: readonly Command[]): Promise<Reply[]> {
        try {
            return await this.link.transact(commands);
        } catch (error) {
            throw about(object, error);
        }
    }

    /** Ends the event with this key and this id if it waits for a retry or an operator. */
    private async cancelTaken(
        object: string,
        key: string,
        id: string,
    ): Promise<"cancelled" | "running" | "absent"> {
        const [word] = await callScript(this.link, CANCEL, object, this.keys.held, [
            this.keys.prefix,
            object,
            key,
            id,
        ]);
        if (word === "cancelled" || word === "running" || word === "absent") {
            return word;
        }
        throw new OutcomeUnknown(object, new Error(`an unexpected reply of the script cancel: ${word}`));
    }

    /** Asks Redis for its time, in ms since 1970, rounded up. */
    private async redisMs(object: string): Promise<number> {
        const [time] = await this.transact(object, [["TIME"]]);
        const [seconds, micros] = Array.isArray(time) ? time.map(Number) : [];
        const ms = (seconds ?? Number.NaN) * 1000 + Math.ceil((micros ?? Number.NaN) / 1000);
        if (!Number.isSafeInteger(ms)) {
            throw new OutcomeUnknown(object, new Error("TIME did not return a time"));
        }
        return ms;
    }
}

/** Returns the id in the value of `OBJ:event.key`, `ID KEY`, if it names this key. */
function takenId(value: Reply, key: string): string | undefined {
    const at = typeof value === "string" ? value.indexOf(" ") : -1;
    return typeof value === "string" && at > 0 && value.slice(at + 1) === key
        ? value.slice(0, at)
        : undefined;
}

/** Reads the due time in a score. If the event is queued: the time at which it was. */
function dueOf(object: string, score: Reply): number {
    const due = typeof score === "string" || typeof score === "number" ? Number(score) : Number.NaN;
    if (Number.isNaN(due)) {
        throw new OutcomeUnknown(object, new Error("ZSCORE did not return a time"));
    }
    return due <= QUEUED ? Math.floor((QUEUED - due) / 1000) : Math.max(Math.floor(due), 0);
}
