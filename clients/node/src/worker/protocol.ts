/** The lines of the handler protocol, version 1. */
import { isUtf8 } from "node:buffer";
import { quoted } from "../escape.js";
import { rawEvents } from "./raw.js";

/** The version of the protocol. */
export const PROTOCOL = 1;
/** The most batches that a program has at a time. */
export const CONCURRENCY_MAX = 1024;
/** The longest line of a worker, in bytes. */
export const LINE_BYTES_MAX = 256 * 1024 * 1024;

/** A line that is not of the protocol, or a worker that speaks another version. */
export class ProtocolError extends Error {
    override readonly name = "ProtocolError";
}

/** The first line of a worker. */
export interface Hello {
    readonly type: "hello";
    readonly lineBytesMax: number;
    readonly timeoutMs: number;
    readonly cancelMs: number;
    /** Whether the worker takes the lines `progress` and `log`. To an earlier worker they break the protocol. */
    readonly takesReports: boolean;
}

/** One event of a batch. */
export interface Envelope {
    readonly id: number;
    readonly prev: number;
    readonly event: unknown;
}

/** A batch: events of one object. */
export class Batch {
    readonly type = "batch";
    private texts: string[] | undefined = undefined;

    constructor(
        readonly number: number,
        readonly object: string,
        /** Failed attempts and crashes of the first event. */
        readonly attempts: number,
        readonly crashes: number,
        /** The token of the worker process. A worker without it knows no emits of handlers. */
        readonly token: string | undefined,
        /** The subtasks of the first event that are done, with their values. */
        readonly once: Readonly<Record<string, unknown>>,
        readonly events: readonly Envelope[],
        private readonly line: string,
    ) {}

    /** Returns the text of an event, by its place. Few handlers ask for it, so it is found only then. */
    raw(at: number): string {
        this.texts ??= rawEvents(this.line);
        return this.texts[at] ?? "null";
    }
}

/** A line of a worker. */
export type Line =
    | Hello
    | Batch
    | { readonly type: "cancel"; readonly batch: number; readonly id: number }
    | {
          readonly type: "once";
          readonly batch: number;
          readonly id: number;
          readonly error: string | undefined;
      }
    | { readonly type: "stop" };

type Members = Readonly<Record<string, unknown>>;

/**
 * Reads a line of a worker. Returns none for a line of an unknown type, which a program ignores.
 *
 * @throws {ProtocolError}
 */
export function readLine(line: string): Line | undefined {
    let members: unknown;
    try {
        members = JSON.parse(line);
    } catch {
        throw wrong(line, "it is no JSON");
    }
    if (typeof members !== "object" || members === null || Array.isArray(members)) {
        throw wrong(line, "it is no object");
    }
    const read = new Reader(members as Members, line);
    switch (read.text("type")) {
        case "hello":
            return hello(read);
        case "batch":
            return batch(read);
        case "cancel":
            return { type: "cancel", batch: read.number("batch"), id: read.number("id") };
        case "once":
            return {
                type: "once",
                batch: read.number("batch"),
                id: read.number("id"),
                error: read.maybeText("error"),
            };
        case "stop":
            return { type: "stop" };
        default:
            return undefined;
    }
}

class Reader {
    constructor(
        readonly members: Members,
        readonly line: string,
    ) {}

    text(name: string): string {
        const value = this.members[name];
        if (typeof value !== "string") {
            throw wrong(this.line, `its member ${name} is no text`);
        }
        return value;
    }

    maybeText(name: string): string | undefined {
        return this.members[name] === undefined ? undefined : this.text(name);
    }

    number(name: string, otherwise?: number): number {
        const value = this.members[name] ?? otherwise;
        if (!isWhole(value)) {
            throw wrong(this.line, `its member ${name} is no whole number below 2^53`);
        }
        return value;
    }
}

function wrong(line: string, why: string): ProtocolError {
    return new ProtocolError(
        `the line ${quoted(line.slice(0, 80))} of the worker is not of the protocol: ${why}`,
    );
}

function hello(read: Reader): Hello {
    const protocol = read.number("protocol");
    if (protocol !== PROTOCOL) {
        throw new ProtocolError(
            `the worker speaks version ${protocol} of the protocol, and this package speaks version ${PROTOCOL}; update the older one`,
        );
    }
    const { capabilities } = read.members;
    return {
        type: "hello",
        lineBytesMax: read.number("line_bytes_max", 1 << 20),
        timeoutMs: read.number("timeout_ms", 300_000),
        cancelMs: read.number("cancel_ms", 5_000),
        takesReports: Array.isArray(capabilities) && capabilities.includes("reports"),
    };
}

function batch(read: Reader): Batch {
    const { events, once = {} } = read.members;
    if (!Array.isArray(events) || events.length === 0) {
        throw wrong(read.line, "its member events is no list of events");
    }
    if (typeof once !== "object" || once === null || Array.isArray(once)) {
        throw wrong(read.line, "its member once is no object");
    }
    return new Batch(
        read.number("batch"),
        read.text("object"),
        read.number("attempts", 0),
        read.number("crashes", 0),
        read.maybeText("token"),
        once as Readonly<Record<string, unknown>>,
        envelopes(events, read.line),
        read.line,
    );
}

/** Checks the envelopes of a batch. They are used as `JSON.parse` has made them. */
function envelopes(events: readonly unknown[], line: string): readonly Envelope[] {
    for (const event of events) {
        const { id, prev } = (event ?? {}) as Members;
        if (!isWhole(id) || !isWhole(prev)) {
            throw wrong(line, `its member ${isWhole(id) ? "prev" : "id"} is no whole number below 2^53`);
        }
    }
    return events as readonly Envelope[];
}

function isWhole(value: unknown): value is number {
    return Number.isSafeInteger(value) && (value as number) >= 0;
}

/**
 * Cuts lines out of chunks of bytes. Each line is a string of its own: a part of the string of a chunk would keep all
 * of the chunk in memory, as long as its batch is in hand.
 */
export class LineReader {
    private readonly parts: Uint8Array[] = [];
    private bytes = 0;

    constructor(private readonly bytesMax = LINE_BYTES_MAX) {}

    /**
     * Returns the lines that end in this chunk.
     *
     * @throws {ProtocolError}
     */
    lines(chunk: Uint8Array): string[] {
        const end = chunk.lastIndexOf(10);
        if (end < 0) {
            this.keep(chunk);
            return [];
        }
        let whole = chunk.subarray(0, end);
        if (this.parts.length > 0) {
            this.count(chunk.indexOf(10));
            whole = Buffer.concat([...this.parts, whole]);
            this.parts.length = 0;
            this.bytes = 0;
        }
        if (end + 1 < chunk.length) {
            this.keep(chunk.subarray(end + 1));
        }
        if (!isUtf8(whole)) {
            throw new ProtocolError("a line of the worker is not UTF-8");
        }
        return split(Buffer.from(whole.buffer, whole.byteOffset, whole.byteLength));
    }

    private keep(part: Uint8Array): void {
        this.count(part.length);
        this.parts.push(part);
    }

    private count(bytes: number): void {
        this.bytes += bytes;
        if (this.bytes > this.bytesMax) {
            throw new ProtocolError(`a line of the worker is longer than ${this.bytesMax} bytes`);
        }
    }
}

/** Returns the lines of a text, without their ends. */
function split(text: Buffer): string[] {
    const lines: string[] = [];
    for (let begin = 0; begin <= text.length; ) {
        const found = text.indexOf(10, begin);
        const end = found < 0 ? text.length : found;
        lines.push(text.toString("utf8", begin, text[end - 1] === 13 && end > begin ? end - 1 : end));
        begin = end + 1;
    }
    return lines;
}
