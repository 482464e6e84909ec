/** An emit under construction: its checked parts, and its commands. */
import { SCRIPT_BYTES_MAX, SCRIPT_EVENTS_MAX, TooLarge } from "../errors.js";
import { toJson } from "../event.js";
import type { Keys } from "../names.js";
import type { Limit } from "./limits.js";
import type { Command } from "./link.js";
import { number, type Reply } from "./reply.js";

/** Further parts of an emit. */
export interface EmitParts {
    /** Events that follow the event, each with its own id. No event of another emit comes between them. */
    readonly subevents?: Iterable<unknown> | undefined;
    /** The object's state, set at `OBJ:data` in the transaction of the emit. */
    readonly data?: unknown;
}

export const EMIT_PARTS = { subevents: true, data: true } satisfies Record<keyof EmitParts, true>;

/** The idempotency key of an emit. */
export interface Once {
    readonly key: string;
    readonly windowMs: number;
    /** Of an awaited emit: the inbox where its end is told. The end is kept for the window. */
    readonly inbox?: string;
}

export class Draft {
    readonly object: string;
    readonly events: readonly string[];
    readonly data: string | undefined;
    private readonly bytes: number;

    constructor(
        private readonly keys: Keys,
        object: string,
        event: unknown,
        { subevents = [], data }: EmitParts,
        eventBytesMax: number,
    ) {
        this.object = keys.object(object);
        this.events = [event, ...subevents].map((one) => toJson(one, eventBytesMax));
        this.data = data === undefined ? undefined : toJson(data, eventBytesMax);
        this.bytes = [...this.events, this.data ?? ""].reduce(
            (sum, text) => sum + Buffer.byteLength(text),
            0,
        );
    }

    /** The commands of the emit. */
    commands(): Command[] {
        const { keys, object, data } = this;
        const commands: Command[] = data === undefined ? [] : [["SET", keys.data(object), data]];
        commands.push(["LPUSH", keys.events(object), ...this.events], ["LPUSH", keys.markers, object]);
        return commands;
    }

    /** Reads the replies to the commands. Returns the number of events queued for the object. */
    queued(replies: readonly Reply[]): number {
        const { keys, object } = this;
        const at = this.data === undefined ? 0 : 1;
        if (at === 1 && replies[0] instanceof Error) {
            number(object, replies[0], keys.data(object));
        }
        const queued = number(object, replies[at], keys.events(object));
        number(object, replies[at + 1], keys.markers);
        return queued;
    }

    /** @throws {TooLarge} if the emit is too large for a script. */
    checkFitsScript(): void {
        if (this.events.length > SCRIPT_EVENTS_MAX || this.bytes > SCRIPT_BYTES_MAX) {
            throw new TooLarge(this.object, this.events.length, this.bytes);
        }
    }

    private way(once: Once | undefined): [way: string, more: string] {
        if (once?.inbox !== undefined) {
            return ["await", `${Math.floor(once.windowMs / 1000)} ${once.inbox}`];
        }
        return this.data === undefined ? ["none", ""] : ["data", this.data];
    }

    /** Whether the emit has one event and no data. */
    get isSingle(): boolean {
        return this.events.length === 1 && this.data === undefined;
    }

    /** The arguments of the script `emit` that makes this emit. */
    scriptArgs(once: Once | undefined, limit: Limit): (string | number)[] {
        return [...scriptArgs(this.keys, this.object, once, limit), ...this.way(once), ...this.events];
    }
}

/** The first arguments of the script `emit`. */
export function scriptArgs(
    keys: Keys,
    object: string,
    once: Once | undefined,
    limit: Limit,
): (string | number)[] {
    const { queuedMax = 0, markersMax = 0 } = limit;
    return [keys.prefix, object, once?.key ?? "", once?.windowMs ?? 0, queuedMax, markersMax];
}
