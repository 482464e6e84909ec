/** The scripts `emit` and `cancel`, which the package carries as data, and their replies. */
import { createHash } from "node:crypto";
import { readFileSync } from "node:fs";
import { Full, KeyReused, OutcomeUnknown, OutOfMemory, Refused } from "../errors.js";
import type { Command, Link } from "./link.js";
import { about, code, isReplyError, type Replies, type Reply } from "./reply.js";

/** A script. Redis knows it by the hash of its text. */
export class Script {
    readonly text: string;
    readonly sha: string;

    constructor(file: string) {
        this.text = readFileSync(new URL(`../../scripts/${file}`, import.meta.url), "utf8");
        this.sha = createHash("sha1").update(this.text).digest("hex");
    }

    /** Returns a call with one key. With `withText`, it also works on a server that does not know the script. */
    call(key: string, args: readonly (string | number)[], withText: boolean): Command {
        return withText ? ["EVAL", this.text, 1, key, ...args] : ["EVALSHA", this.sha, 1, key, ...args];
    }
}

export const EMIT = new Script("emit.lua");
export const CANCEL = new Script("cancel.lua");

/** The reply of a script, and the replies to its transaction. */
export interface Called {
    readonly words: Words;
    readonly replies: Replies;
}

/** Calls a script for an object, and returns its reply. */
export async function callScript(
    link: Link,
    script: Script,
    object: string,
    key: string,
    args: readonly (string | number)[],
): Promise<Called> {
    for (const withText of [false, true]) {
        let replies: Replies;
        try {
            replies = await link.transact([script.call(key, args, withText)]);
        } catch (error) {
            throw about(object, error);
        }
        const words = readWords(object, replies.results[0]);
        if (words !== undefined) {
            return { words, replies };
        }
    }
    throw new OutcomeUnknown(object, new Error("the reply is not that of the script"));
}

/** The reply of a script: a status word, and further texts and numbers. */
export type Words = readonly [word: string, ...rest: (string | number)[]];

/** Reads the reply of a script. Returns none if the server does not know the script: then nothing has happened. */
export function readWords(object: string, reply: Reply): Words | undefined {
    if (reply instanceof Error) {
        if (code(reply) === "NOSCRIPT") {
            return undefined;
        }
        if (isReplyError(reply) && code(reply) === "OOM") {
            throw new OutOfMemory(object);
        }
        if (isReplyError(reply) && ["WRONGTYPE", "NOPERM"].includes(code(reply))) {
            throw new Refused(object, reply);
        }
        throw new OutcomeUnknown(object, reply);
    }
    if (!Array.isArray(reply) || typeof reply[0] !== "string") {
        throw new OutcomeUnknown(object, new Error("an unexpected reply of a script"));
    }
    const [word, first, second] = reply;
    // The script looks at types and rights before it writes.
    if (word === "denied") {
        throw new Refused(object, new Error(`NOPERM the user may not use ${first}`));
    }
    if (word === "wrong_type") {
        throw new Refused(
            object,
            new Error(`WRONGTYPE ${String(first).replace(/[\r\n]/g, " ")} is a ${second}`),
        );
    }
    return reply as unknown as Words;
}

/** The result of the script `emit`. */
export interface EmitDone {
    /** Number of events queued for the object. */
    readonly queued: number;
    /** Whether the same emit was done before. */
    readonly repeated: boolean;
    /** If each event is an emit of its own and not all of them fit: the number of those that fit, and the error. */
    readonly part?: { readonly events: number; readonly error: Full };
}

/** Reads the reply of `emit` to a call with `events` events. */
export function readEmit(object: string, key: string, events: number, words: Words): EmitDone {
    const [word, ...rest] = words;
    const count = (at: number): number => {
        const value = rest[at];
        if (typeof value !== "number") {
            throw new OutcomeUnknown(object, new Error(`an unexpected reply of the script emit: ${word}`));
        }
        return value;
    };
    switch (word) {
        case "emitted":
            return { queued: count(0), repeated: false };
        case "repeated":
            return { queued: count(0), repeated: true };
        case "part": {
            const [queued, limit, some] = [count(0), count(1), count(2)];
            const error = new Full(object, {
                what: "queue",
                queued,
                events: Math.max(events - some, 0),
                limit,
            });
            return { queued, repeated: false, part: { events: some, error } };
        }
        case "differs":
            throw new KeyReused(object, key);
        case "full":
            throw rest[0] === "markers"
                ? new Full(object, { what: "markers", markers: count(1), limit: count(2) })
                : new Full(object, { what: "queue", queued: count(1), events, limit: count(2) });
        default:
            throw new OutcomeUnknown(object, new Error(`an unexpected reply of the script emit: ${word}`));
    }
}
