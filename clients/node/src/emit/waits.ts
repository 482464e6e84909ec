/**
 * The waits of an emitter for the ends of events. One loop looks for all of them, over one connection. It begins with
 * the first wait, and ends with the last one.
 *
 * Ten times a second the loop reads the ends of all awaited events. Between these looks it waits for the inbox: the
 * step that ends an event of this emitter pushes the key of the end there. The looks find the ends of other emitters'
 * events, and those whose entry in the inbox is lost.
 */
import { randomBytes } from "node:crypto";
import { setTimeout as sleep } from "node:timers/promises";
import type { Redis } from "ioredis";
import { EndRefused, EndTimedOut, WaitClosed } from "../errors.js";
import type { Keys } from "../names.js";
import { type EventEnd, readEnd } from "./end.js";
import { inTime, type Link, positive } from "./link.js";
import { code, isReplyError } from "./reply.js";

/** The time between two looks at the same event, in ms. Even the shortest wait has this time. */
const ROUND_MS = 100;
/** The longest pause after a failure of the connection, in ms. */
const AGAIN_MAX_MS = 1000;
/** The most events of one command. An end has up to 64 KiB for each handler with a result. */
const PER_LOOK = 32;
/** The longest time of a timer, in ms. */
const TIMER_MAX_MS = 2 ** 31 - 1;
/** With these codes, the same command would fail again. */
const LASTING = ["NOPERM", "WRONGTYPE", "ERR"];

/** An awaited event. */
export interface Named {
    readonly object: string;
    readonly name: string;
}

/** The emitter was closed. */
const CLOSED = Symbol("closed");
/** An end, or a refusal of Redis. None if the time of the wait is over. */
type Found = EventEnd | Error | typeof CLOSED | undefined;

/** A wait that has begun. */
export interface Wait {
    /**
     * Returns the end.
     *
     * @throws {WaitError}
     * @throws the reason of the signal, if it is aborted.
     */
    end(timeout: number, signal?: AbortSignal): Promise<EventEnd>;
    /** Ends the wait. */
    leave(): void;
}

export class Waits {
    /** The name of the inbox. */
    readonly inbox = randomBytes(16).toString("hex");
    private readonly inboxKey: string;
    private readonly waiting = new Map<string, Set<(found: Found) => void>>();
    private isWatched = false;
    private isClosed = false;
    private reader: Redis | undefined;
    /** Whether the user may wait for the inbox. */
    private hasInbox = true;
    /** The last error, if Redis could not be asked. */
    private unreachable: unknown;

    constructor(
        private readonly link: Link,
        private readonly keys: Keys,
    ) {
        this.inboxKey = keys.eventEnds(this.inbox);
    }

    /** Begins a wait. */
    join(named: Named): Wait {
        const key = this.keys.eventEnd(named.object, named.name);
        let tell: (found: Found) => void = () => undefined;
        const told = new Promise<Found>((resolve) => {
            tell = resolve;
        });
        if (this.isClosed) {
            tell(CLOSED);
        } else {
            this.waiting.set(key, (this.waiting.get(key) ?? new Set()).add(tell));
            if (!this.isWatched) {
                this.isWatched = true;
                void this.watch();
            }
        }
        return {
            end: async (timeout, signal) => {
                const found = await within(told, timeout, signal);
                return this.read(found, named, timeout);
            },
            leave: () => {
                const tells = this.waiting.get(key);
                if (tells?.delete(tell) && tells.size === 0) {
                    this.waiting.delete(key);
                }
            },
        };
    }

    /** Waits for the end of an event. */
    async endOf(named: Named, timeout: number, signal?: AbortSignal): Promise<EventEnd> {
        const { isWatched } = this;
        const wait = this.join(named);
        if (isWatched) {
            // The loop looks again only when its next look is due, and the event may have ended long ago.
            void this.lookAside(this.keys.eventEnd(named.object, named.name));
        }
        try {
            return await wait.end(timeout, signal);
        } finally {
            wait.leave();
        }
    }

    /** Ends all waits. */
    close(): void {
        this.isClosed = true;
        for (const key of [...this.waiting.keys()]) {
            this.tell(key, CLOSED);
        }
        this.disconnect();
    }

    private read(found: Found, { object, name }: Named, timeout: number): EventEnd {
        if (found === undefined) {
            throw new EndTimedOut(object, name, timeout, this.unreachable);
        }
        if (found === CLOSED) {
            throw new WaitClosed(object, name);
        }
        if (found instanceof Error) {
            throw new EndRefused(object, name, found);
        }
        return found;
    }

    private tell(key: string, found: Found): void {
        const tells = this.waiting.get(key) ?? [];
        this.waiting.delete(key);
        for (const tell of tells) {
            tell(found);
        }
    }

    /** Looks until nobody waits any more. */
    private async watch(): Promise<void> {
        let againMs = ROUND_MS;
        this.hasInbox = true;
        while (this.waiting.size > 0) {
            try {
                this.reader ??= await this.link.reader();
                await this.round(this.reader);
                againMs = ROUND_MS;
                this.unreachable = undefined;
            } catch (error) {
                this.unreachable = error;
                this.disconnect();
                if (this.waiting.size > 0) {
                    await sleep(againMs);
                    againMs = Math.min(2 * againMs, AGAIN_MAX_MS);
                }
            }
        }
        this.disconnect();
        this.isWatched = false;
    }

    private disconnect(): void {
        // At a connection that has ended, the library would wait for its end for 2 s.
        if (this.reader !== undefined && this.reader.status !== "end") {
            this.reader.disconnect();
        }
        this.reader = undefined;
    }

    /** Looks at all awaited ends, and then waits for the inbox until the next look is due. */
    private async round(reader: Redis): Promise<void> {
        const due = performance.now() + ROUND_MS;
        const keys = [...this.waiting.keys()];
        for (let at = 0; at < keys.length; at += PER_LOOK) {
            await this.look(reader, keys.slice(at, at + PER_LOOK));
        }
        while (this.hasInbox) {
            const left = due - performance.now();
            // A time of zero would block for ever.
            if (left < 1) {
                return;
            }
            const told = await this.told(reader, left);
            if (told.length > 0) {
                await this.look(reader, told);
            }
        }
        await sleep(Math.max(due - performance.now(), 0));
    }

    /** Waits for the inbox, and returns the keys of ends in it. */
    private async told(reader: Redis, left: number): Promise<string[]> {
        const args = [(left / 1000).toFixed(3), 1, this.inboxKey, "RIGHT", "COUNT", PER_LOOK];
        try {
            const told = await inTime(reader.call("BLMPOP", args), left + this.link.replyMs);
            return Array.isArray(told) ? (told[1] as string[]) : [];
        } catch (error) {
            if (!isLasting(error)) {
                throw error;
            }
            this.hasInbox = false;
            return [];
        }
    }

    /** Reads the ends under these keys, and tells those that are there. */
    private async look(reader: Redis, keys: readonly string[]): Promise<void> {
        try {
            this.tellAll(keys, await inTime(reader.mget(...keys), this.link.replyMs));
        } catch (error) {
            if (!isLasting(error)) {
                throw error;
            }
            for (const key of keys) {
                this.tell(key, error);
            }
        }
    }

    /** Looks once over the connection of the emits. If that fails, the loop will tell. */
    private async lookAside(key: string): Promise<void> {
        try {
            this.tellAll([key], await this.link.values([key]));
        } catch {}
    }

    private tellAll(keys: readonly string[], values: readonly (string | null)[]): void {
        keys.forEach((key, at) => {
            const end = readEnd(values[at] ?? "?");
            if (end !== undefined) {
                this.tell(key, end);
            }
        });
    }
}

function isLasting(error: unknown): error is Error {
    return error instanceof Error && isReplyError(error) && LASTING.includes(code(error));
}

/** Returns none if the time is over. */
async function within(told: Promise<Found>, timeout: number, signal?: AbortSignal): Promise<Found> {
    positive("timeout", timeout);
    signal?.throwIfAborted();
    let [timer, abort]: [NodeJS.Timeout | undefined, () => void] = [undefined, () => undefined];
    const over = new Promise<undefined>((resolve, reject) => {
        timer = setTimeout(resolve, Math.min(Math.max(timeout, ROUND_MS), TIMER_MAX_MS), undefined);
        abort = () => reject(signal?.reason);
        signal?.addEventListener("abort", abort);
    });
    try {
        return await Promise.race([told, over]);
    } finally {
        clearTimeout(timer);
        signal?.removeEventListener("abort", abort);
    }
}
