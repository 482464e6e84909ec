/**
 * Emits many events at once, in few transactions. Events are collected in chunks. Only one chunk is under way at a
 * time, because the later events of an object that has failed must not be sent. The next chunk is collected
 * meanwhile. So memory is bounded by two chunks and the list of failed objects.
 */
import { EmitError, EmitManyError, OutcomeUnknown } from "../errors.js";
import { toJson } from "../event.js";
import type { Keys } from "../names.js";
import { scriptArgs } from "./draft.js";
import type { Limits } from "./limits.js";
import type { Command, Link } from "./link.js";
import { Failed, number, Replies, type Reply } from "./reply.js";
import { EMIT, readEmit, readWords } from "./scripts.js";

/** The most objects with limits in a chunk. Their emits are scripts, which take longer. */
const SCRIPTS_PER_CHUNK = 128;

/** The result of `emitMany` if all events were acknowledged. */
export interface EmittedMany {
    /** Number of queued events. These are all events. */
    readonly events: number;
    /** Number of transactions. */
    readonly chunks: number;
}

/** The parts of an emitter that `emitMany` and `scheduleMany` use. */
export interface Many {
    readonly keys: Keys;
    readonly link: Link;
    readonly limits: Limits;
    readonly eventBytesMax: number;
    readonly chunkEventsMax: number;
    readonly chunkBytesMax: number;
}

type Pair = readonly [object: string, event: unknown];

/** The events of one object in one chunk. */
interface Group {
    readonly object: string;
    readonly events: string[];
    /** Positions of these events. */
    readonly positions: number[];
    byScript: boolean;
}

/** One transaction under construction. */
interface Chunk {
    groups: Group[];
    /** Position just behind the last event of this chunk. */
    end: number;
    /** Whether there are no events behind this chunk. */
    isLast: boolean;
}

/** Checks that an event has no third member: an option there would be ignored. */
function checkPair(next: Pair | undefined | "slow", position: number): void {
    const members: number = Array.isArray(next) ? next.length : 2;
    if (members !== 2) {
        throw new TypeError(
            `emitMany: the event at position ${position} has ${members} members; it is a pair of an object and an event, without options`,
        );
    }
}

export class ManySender {
    private position = 0;
    private acknowledged = 0;
    private chunks = 0;
    private readonly failed = new Map<string, { first: number; error: EmitError }>();
    private stopped: number | undefined;
    /** The error of the source. */
    private broken: { readonly error: unknown } | undefined;

    constructor(private readonly many: Many) {}

    async send(events: Iterable<Pair> | AsyncIterable<Pair>): Promise<EmittedMany> {
        const source = new Source(events);
        try {
            await this.many.limits.known();
            for (let chunk = await this.gather(source); ; ) {
                this.dropFailed(chunk);
                const sending = this.sendChunk(chunk);
                const settled = sending.catch(() => undefined);
                let next: Chunk | undefined;
                try {
                    next = chunk.isLast ? undefined : await this.gather(source, settled);
                } finally {
                    this.settle(chunk, await sending.catch((error: unknown) => error));
                }
                if (next === undefined || this.stopped !== undefined) {
                    return this.result();
                }
                chunk = next;
            }
        } finally {
            await source.close();
        }
    }

    /**
     * Takes events until a chunk is full. Refused events count too, so that one call reads a bounded number of
     * events.
     */
    private async gather(source: Source, underWay?: Promise<unknown>): Promise<Chunk> {
        const groups = new Map<string, Group>();
        const limits = this.many.limits.now;
        let [bytes, scripts, isLast] = [0, 0, false];
        // If the source makes its caller wait, and nothing is under way, the chunk is over.
        const leave = async () => {
            await underWay;
            await new Promise((resolve) => setImmediate(resolve));
        };
        for (let count = 0; count < this.many.chunkEventsMax; count += 1) {
            let next: Pair | undefined | "slow";
            try {
                next = await source.next(source.isAsync && groups.size > 0 ? leave() : undefined);
                checkPair(next, this.position);
            } catch (error) {
                next = undefined;
                // The events before the error of the source are sent.
                this.broken = { error };
            }
            if (next === "slow") {
                break;
            }
            if (next === undefined) {
                isLast = true;
                break;
            }
            const at = this.position;
            this.position += 1;
            const [object, event] = next;
            if (this.failed.has(object)) {
                continue;
            }
            try {
                const isNew = !groups.has(object);
                bytes += this.add(groups, object, event, at);
                scripts += isNew && limits.of(object) !== undefined ? 1 : 0;
            } catch (error) {
                if (!(error instanceof EmitError)) {
                    throw error;
                }
                this.fail(String(object), at, error);
            }
            if (bytes >= this.many.chunkBytesMax || scripts >= SCRIPTS_PER_CHUNK) {
                break;
            }
        }
        return { groups: [...groups.values()], end: this.position, isLast };
    }

    /** Adds one event to the chunk. Returns the number of bytes that it adds. */
    private add(groups: Map<string, Group>, object: string, value: unknown, at: number): number {
        // The name is checked before the event, as in a single emit.
        const group = groups.get(object) ?? {
            object: this.many.keys.object(object),
            events: [],
            positions: [],
            byScript: false,
        };
        const event = toJson(value, this.many.eventBytesMax);
        groups.set(object, group);
        group.events.push(event);
        group.positions.push(at);
        return Buffer.byteLength(object) + Buffer.byteLength(event);
    }

    /** Records that an object failed. Of two errors of an object, the one at the earlier position counts. */
    private fail(object: string, first: number, error: EmitError): void {
        const earlier = this.failed.get(object);
        if (earlier === undefined || earlier.first > first) {
            this.failed.set(object, { first, error });
        }
    }

    /**
     * Removes the objects that failed in the previous chunk. If a refused event of this chunk caused the failure,
     * the object's earlier events stay.
     */
    private dropFailed(chunk: Chunk): void {
        chunk.groups = chunk.groups.filter(({ object, positions: [first = 0] }) => {
            const failed = this.failed.get(object);
            return failed === undefined || first < failed.first;
        });
    }

    private async sendChunk({ groups }: Chunk): Promise<Replies> {
        const { keys, link, limits } = this.many;
        const known = await limits.known();
        const commands: Command[] = [];
        const marked: string[] = [];
        let hasText = false;
        for (const group of groups) {
            const { object, events } = group;
            const limit = known.of(object);
            group.byScript = limit !== undefined;
            if (limit === undefined) {
                commands.push(["LPUSH", keys.events(object), ...events]);
                marked.push(object);
            } else {
                const args = [...scriptArgs(keys, object, undefined, limit), "part", "", ...events];
                // The first call has the text of the script, which loads the script for the other calls.
                commands.push(EMIT.call(keys.markers, args, !hasText));
                hasText = true;
            }
        }
        if (marked.length > 0) {
            commands.push(["LPUSH", keys.markers, ...marked]);
        }
        return commands.length === 0
            ? new Replies([], undefined)
            : await limits.beside(link.transact(commands));
    }

    /** Records the outcome of a chunk from the replies to it, or from its error. */
    private settle({ groups, end }: Chunk, replies: Replies | unknown): void {
        if (groups.length === 0) {
            return;
        }
        if (!(replies instanceof Replies)) {
            if (!(replies instanceof Failed)) {
                throw replies;
            }
            for (const { object, positions } of groups) {
                this.fail(object, positions[0] ?? end, replies.about(object));
            }
            this.stop(end);
            return;
        }
        this.chunks += 1;
        const { results } = replies;
        const mark: Reply = results[results.length - 1];
        groups.forEach((group, at) => {
            try {
                this.acknowledged += this.acknowledgedOf(group, replies, results[at], mark);
            } catch (error) {
                if (!(error instanceof EmitError)) {
                    throw error;
                }
                this.fail(group.object, group.positions[0] ?? end, error);
            }
        });
        const lacksMark = groups.some(({ byScript }) => !byScript) && typeof mark !== "number";
        if (lacksMark || replies.tooFew !== undefined) {
            this.stop(end);
        }
    }

    /** Returns the number of acknowledged events of a group. */
    private acknowledgedOf(
        { object, events, positions, byScript }: Group,
        replies: Replies,
        reply: Reply,
        mark: Reply,
    ): number {
        const { keys } = this.many;
        if (!byScript) {
            number(object, reply, keys.events(object));
            number(object, mark, keys.markers);
            replies.check(object);
            return events.length;
        }
        const words = readWords(object, reply);
        if (words === undefined) {
            throw new OutcomeUnknown(object, new Error("the reply is not that of the script"));
        }
        const { part } = readEmit(object, "", events.length, words);
        replies.check(object);
        if (part === undefined) {
            return events.length;
        }
        this.fail(object, positions[part.events] ?? positions[0] ?? 0, part.error);
        return part.events;
    }

    /**
     * Stops the call at the position `end`. A chunk that was collected ahead may have refused events. They are
     * behind `end`, so they are removed from the failures.
     */
    private stop(end: number): void {
        for (const [object, { first }] of this.failed) {
            if (first >= end) {
                this.failed.delete(object);
            }
        }
        this.stopped = end;
    }

    private result(): EmittedMany {
        if (this.failed.size === 0 && this.broken !== undefined) {
            throw this.broken.error;
        }
        if (this.failed.size === 0) {
            return { events: this.acknowledged, chunks: this.chunks };
        }
        const failed = [...this.failed].map(([object, { first, error }]) => ({ object, first, error }));
        failed.sort((a, b) => a.first - b.first);
        throw new EmitManyError(this.acknowledged, failed, this.stopped);
    }
}

/** The events of a caller, from an iterable of either kind. */
class Source {
    private readonly iterator: Iterator<Pair> | AsyncIterator<Pair>;
    private pending: Promise<IteratorResult<Pair>> | IteratorResult<Pair> | undefined;
    readonly isAsync: boolean;
    private isOver = false;

    constructor(events: Iterable<Pair> | AsyncIterable<Pair>) {
        this.isAsync = Symbol.asyncIterator in events;
        this.iterator =
            Symbol.asyncIterator in events ? events[Symbol.asyncIterator]() : events[Symbol.iterator]();
    }

    /**
     * Returns the next event; none at the end. Returns `slow` if `leave` resolves before the source has an event:
     * the event then comes with the next call.
     */
    async next(leave: Promise<unknown> | undefined): Promise<Pair | undefined | "slow"> {
        const taken = this.pending ?? this.iterator.next();
        this.pending = taken;
        const result = await (leave === undefined
            ? taken
            : Promise.race([taken, leave.then(() => undefined)]));
        if (result === undefined) {
            Promise.resolve(taken).catch(() => undefined);
            return "slow";
        }
        this.pending = undefined;
        this.isOver = result.done === true;
        return result.done === true ? undefined : result.value;
    }

    /** Lets the iterator release its resources, if it was not read to its end. */
    async close(): Promise<void> {
        if (!this.isOver) {
            this.isOver = true;
            const closed = Promise.resolve(this.iterator.return?.()).catch(() => undefined);
            // A generator that makes its caller wait ends only behind that wait.
            await (this.pending === undefined ? closed : undefined);
        }
    }
}
