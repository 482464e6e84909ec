/**
 * The limits of the queues, as far as this emitter knows them. An emitter reads all limits when it connects. While
 * it is used, it reads them again together with an emit. An emit of an object with a limit is a script.
 */
import type { Link } from "./link.js";
import { code, isReplyError } from "./reply.js";

/** The times after which an emitter reads the limits again, in ms. */
const LOOK_WITHOUT_MS = 5_000;
const LOOK_WITH_MS = 1_000;
const LOOK_REFUSED_MS = 60_000;

/** The limits of one object. */
export interface Limit {
    readonly queuedMax?: number | undefined;
    readonly markersMax?: number | undefined;
}

/** The limits by their selectors. */
export class LimitTable {
    constructor(private readonly limits: ReadonlyMap<string, Limit> = new Map()) {}

    static read(fields: Readonly<Record<string, string>>): LimitTable {
        const limits = new Map<string, Limit>();
        for (const [selector, text] of Object.entries(fields)) {
            const limit = readLimit(text);
            if (limit !== undefined) {
                limits.set(selector, limit);
            }
        }
        return new LimitTable(limits);
    }

    get isEmpty(): boolean {
        return this.limits.size === 0;
    }

    /**
     * Returns the limits of an object. The limit of queued events is the one with the longest matching selector.
     * The limit of markers is the same for all objects.
     */
    of(object: string): Limit | undefined {
        if (this.isEmpty) {
            return undefined;
        }
        const all = this.limits.get("*");
        let longest: Limit | undefined;
        for (
            let at = object.lastIndexOf(":");
            at >= 0 && longest === undefined;
            at = object.lastIndexOf(":", at - 1)
        ) {
            longest = this.limits.get(`${object.slice(0, at + 1)}*`);
            if (at === 0) {
                break;
            }
        }
        const queuedMax = (longest ?? all)?.queuedMax;
        const markersMax = all?.markersMax;
        return queuedMax === undefined && markersMax === undefined ? undefined : { queuedMax, markersMax };
    }
}

/** Reads a value of `event.limits`. Returns none if it is invalid. */
function readLimit(text: string): Limit | undefined {
    let value: unknown;
    try {
        value = JSON.parse(text);
    } catch {
        return undefined;
    }
    if (typeof value !== "object" || value === null || Array.isArray(value)) {
        return undefined;
    }
    const { queued_max: queuedMax = null, markers_max: markersMax = null } = value as Record<string, unknown>;
    const isMost = (most: unknown): most is number | null =>
        most === null || (typeof most === "number" && Number.isInteger(most) && most >= 0);
    if (!isMost(queuedMax) || !isMost(markersMax)) {
        return undefined;
    }
    return { queuedMax: queuedMax ?? undefined, markersMax: markersMax ?? undefined };
}

export class Limits {
    private table = new LimitTable();
    private first: Promise<void> | undefined;
    /** The time of the next look; 0 before the first one. */
    private lookAt = 0;

    constructor(
        private readonly link: Link,
        private readonly key: string,
    ) {}

    /** Returns the limits. The first call reads them, and all calls wait for that. */
    async known(): Promise<LimitTable> {
        this.first ??= this.look();
        await this.first;
        return this.table;
    }

    /** Returns the limits as they are known now. */
    get now(): LimitTable {
        return this.table;
    }

    /** Awaits `sending`. If it is time, reads the limits at the same time, behind what `sending` has sent. */
    async beside<T>(sending: Promise<T>): Promise<T> {
        const now = performance.now();
        if (this.lookAt > now) {
            return await sending;
        }
        // Other emits do not read the limits at the same time.
        this.lookAt = now + LOOK_WITH_MS;
        const [sent] = await Promise.allSettled([sending, this.look()]);
        if (sent.status === "rejected") {
            throw sent.reason;
        }
        return sent.value;
    }

    private async look(): Promise<void> {
        let waitMs = LOOK_WITH_MS;
        try {
            this.table = LimitTable.read(await this.link.hash(this.key));
            waitMs = this.table.isEmpty ? LOOK_WITHOUT_MS : LOOK_WITH_MS;
        } catch (error) {
            // The user may not read the limits, or their key has a wrong type. Otherwise the emit has the same error.
            if (isReplyError(error) && ["NOPERM", "WRONGTYPE"].includes(code(error as Error))) {
                waitMs = LOOK_REFUSED_MS;
            }
        }
        this.lookAt = performance.now() + waitMs;
    }
}
