/**
 * Schedules: events that are queued later. A schedule is one plain transaction. Plain commands replace and cancel it
 * until a worker takes the event. After that, the script `cancel` can end the event while it waits for a retry.
 */
import { EmitError, InvalidDue, OutcomeUnknown, ScheduleManyError } from "../errors.js";
import { toJson } from "../event.js";
import { checkKey, isChosen, type Keys, uniqueKey } from "../names.js";
import { checkOptions } from "../options.js";
import type { Command, Link } from "./link.js";
import type { Many } from "./many.js";
import { about, number, type Replies, type Reply } from "./reply.js";
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

const SCHEDULE_OPTIONS = { after: true, at: true, key: true, keep: true } satisfies Record<
    keyof ScheduleOptions,
    true
>;

/** Checks the names of the options of `call`. */
export function checkSchedule(call: string, options: ScheduleOptions): void {
    checkOptions(call, options, SCHEDULE_OPTIONS, {
        idempotencyKey: 'a schedule has a "key": another schedule with this key replaces it',
    });
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

/** A schedule of `scheduleMany`: the arguments of `schedule`. */
export type ScheduleItem = readonly [object: string, event: unknown, options?: ScheduleOptions];

/** A checked schedule, with its time. */
interface Ready {
    readonly object: string;
    readonly event: string;
    readonly key: string;
    readonly keep: ScheduleOptions["keep"];
    readonly dueMs: number;
    /** Whether the schedule must wake a worker. */
    readonly wakes: boolean;
}

/** A schedule that is stored, and the id of an event with its key that a worker has taken. */
interface Stored {
    readonly scheduled: Scheduled;
    readonly taken: string | undefined;
}

/** The time of Redis at the beginning of a call. It is asked for at most once. */
type Clock = (object: string) => Promise<number>;

export class Scheduler {
    private readonly link: Link;
    private readonly keys: Keys;

    constructor(private readonly many: Many) {
        this.link = many.link;
        this.keys = many.keys;
    }

    async schedule(name: string, value: unknown, options: ScheduleOptions): Promise<Scheduled> {
        checkSchedule("schedule", options);
        const scheduled: Scheduled[] = [];
        await this.store([await this.ready([name, value, options], this.clock())], scheduled);
        return scheduled[0] as Scheduled;
    }

    /** Stores many schedules. The transactions take effect one by one, and the first failure ends the call. */
    async scheduleMany(
        schedules: Iterable<ScheduleItem> | AsyncIterable<ScheduleItem>,
    ): Promise<Scheduled[]> {
        const { chunkEventsMax, chunkBytesMax } = this.many;
        const clock = this.clock();
        const scheduled: Scheduled[] = [];
        let chunk: Ready[] = [];
        let bytes = 0;
        const flush = async () => {
            const full = chunk;
            [chunk, bytes] = [[], 0];
            await this.store(full, scheduled);
        };
        try {
            try {
                for await (const item of schedules) {
                    checkSchedule("scheduleMany", item[2] ?? {});
                    const ready = await this.ready(item, clock);
                    chunk.push(ready);
                    bytes += Buffer.byteLength(ready.event) + Buffer.byteLength(memberOf(ready));
                    if (chunk.length >= chunkEventsMax || bytes >= chunkBytesMax) {
                        await flush();
                    }
                }
            } finally {
                // Also the schedules before an invalid one, and those before an error of the source.
                await flush();
            }
        } catch (error) {
            throw error instanceof EmitError ? new ScheduleManyError(scheduled, error) : error;
        }
        return scheduled;
    }

    private clock(): Clock {
        let now: Promise<number> | undefined;
        return (object) => {
            now ??= this.redisMs(object);
            return now;
        };
    }

    /** Checks a schedule, and computes its time. */
    private async ready([name, value, options = {}]: ScheduleItem, clock: Clock): Promise<Ready> {
        const object = this.keys.object(name);
        const event = toJson(value, this.many.eventBytesMax);
        const key = options.key === undefined ? uniqueKey() : checkKey(options.key);
        const keep = checkKeep(options.keep);
        const due = checkDue(options);
        const at = "atMs" in due ? due.atMs : (await clock(object)) + due.afterMs;
        const wakes = "atMs" in due ? due.atMs < Date.now() + WAKE_MS : due.afterMs < WAKE_MS;
        return { object, event, key, keep, dueMs: Math.min(at, TIME_MAX_MS), wakes };
    }

    /** Stores these schedules in one transaction, and adds them to `scheduled`. */
    private async store(chunk: readonly Ready[], scheduled: Scheduled[]): Promise<void> {
        const [first] = chunk;
        if (first === undefined) {
            return;
        }
        const commands = chunk.flatMap((ready) => this.commands(ready));
        if (chunk.some(({ wakes }) => wakes)) {
            commands.push(["ZADD", this.keys.wake, 0, "wake"]);
        }
        const replies = await this.transact(first.object, commands);
        const [results, begin] = [replies.results.values(), scheduled.length];
        const ends: { readonly at: number; readonly ready: Ready; readonly id: string }[] = [];
        let unread: { readonly error: unknown } | undefined;
        for (const ready of chunk) {
            let stored: Stored;
            try {
                stored = this.read(ready, results);
            } catch (error) {
                unread = { error };
                break;
            }
            const { scheduled: done, taken: id } = stored;
            if (id !== undefined && ready.keep !== "first") {
                ends.push({ at: scheduled.length, ready, id });
            }
            const isRunning = id !== undefined && ready.keep === "first" && done.change === "new";
            scheduled.push(isRunning ? { ...done, change: "running" } : done);
        }
        if (scheduled.length > begin && replies.tooFew !== undefined) {
            scheduled.length = begin;
            replies.check(first.object);
        }
        // These schedules are stored by now. Former events with their keys may still wait for a retry.
        for (const { at, ready, id } of ends) {
            try {
                const ended = await this.cancelTaken(ready.object, ready.key, id);
                if (ended !== "absent") {
                    const change = ended === "running" ? "running" : "replaced";
                    scheduled[at] = { ...(scheduled[at] as Scheduled), change };
                }
            } catch (error) {
                // To complete the call, the caller sends the schedules from this one on again.
                scheduled.length = at;
                throw error;
            }
        }
        if (unread !== undefined) {
            throw unread.error;
        }
    }

    private commands(ready: Ready): Command[] {
        const { object, event, key, keep, dueMs } = ready;
        const [set, member] = [this.keys.scheduled, memberOf(ready)];
        const commands: Command[] = [
            [keep === "first" ? "HSETNX" : "HSET", this.keys.scheduledOf(object), key, event],
            ["ZADD", set, ...(keep === undefined ? [] : ["NX"]), dueMs, member],
        ];
        if (keep !== undefined) {
            commands.push(["ZSCORE", set, member]);
        }
        if (isChosen(key)) {
            commands.push(["GET", this.keys.taken(object)]);
        }
        return commands;
    }

    /** Reads the replies to the commands of a schedule. */
    private read({ object, key, keep, dueMs }: Ready, replies: Iterator<Reply>): Stored {
        const next = (): Reply => replies.next().value;
        const [put, added] = [next(), next()];
        const score = keep === undefined ? undefined : next();
        const taken = isChosen(key) ? takenId(next(), key) : undefined;
        const isNew = number(object, put, this.keys.scheduledOf(object)) > 0;
        number(object, added, this.keys.scheduled);
        const change = isNew ? "new" : keep === "first" ? "kept" : "replaced";
        const due = keep === undefined ? dueMs : dueOf(object, score);
        return { scheduled: { key, dueMs: due, change }, taken };
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
        const [deleted, removed, taken] = replies.results;
        const count = number(object, deleted, hash) + number(object, removed, set);
        replies.check(object);
        const wasThere = count > 0 ? "cancelled" : "not_found";
        const id = takenId(taken, key);
        const ended = id === undefined ? "absent" : await this.cancelTaken(object, key, id);
        return ended === "absent" ? wasThere : ended;
    }

    private async transact(object: string, commands: readonly Command[]): Promise<Replies> {
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
        const args = [this.keys.prefix, object, key, id];
        const { words, replies } = await callScript(this.link, CANCEL, object, this.keys.held, args);
        const [word] = words;
        if (word === "cancelled" || word === "running" || word === "absent") {
            replies.check(object);
            return word;
        }
        throw new OutcomeUnknown(object, new Error(`an unexpected reply of the script cancel: ${word}`));
    }

    /** Asks Redis for its time, in ms since 1970, rounded up. */
    private async redisMs(object: string): Promise<number> {
        const [time] = (await this.transact(object, [["TIME"]])).results;
        const [seconds, micros] = Array.isArray(time) ? time.map(Number) : [];
        const ms = (seconds ?? Number.NaN) * 1000 + Math.ceil((micros ?? Number.NaN) / 1000);
        if (!Number.isSafeInteger(ms)) {
            throw new OutcomeUnknown(object, new Error("TIME did not return a time"));
        }
        return ms;
    }
}

/** Returns the member of the set of all schedules. */
function memberOf({ object, key }: Ready): string {
    return `${object}\n${key}`;
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
