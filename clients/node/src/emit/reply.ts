/**
 * Reads the replies to a transaction, and tells the failures apart. If Redis returns an error in place of the
 * results, no command ran. If the results have an error, the other commands ran. If there is no reply, the outcome
 * is unknown.
 */
import {
    type EmitError,
    OutcomeUnknown,
    OutOfMemory,
    Refused,
    Unconnected,
    Unreplicated,
    WrongType,
} from "../errors.js";
import type { TooFew } from "./replicas.js";

/** A reply of Redis to one command. An error of the command is a value here. */
export type Reply = unknown;

/** The results of a transaction that Redis ran. */
export class Replies {
    constructor(
        /** The result of each command. */
        readonly results: readonly Reply[],
        /** Too few replicas have the transaction, if the emitter waits for them. */
        readonly tooFew: TooFew | undefined,
    ) {}

    /**
     * Call it after the results were read: their errors show that the call was not applied, or only in part.
     *
     * @throws {Unreplicated} if too few replicas have the transaction.
     */
    check(object: string): void {
        if (this.tooFew !== undefined) {
            throw new Unreplicated(object, this.tooFew);
        }
    }
}

/** The failure of a whole transaction. It does not name an object. */
export class Failed extends Error {
    constructor(
        readonly outcome: "connect" | "unknown" | "out_of_memory" | "refused",
        override readonly cause: Error,
        /** The address of Redis, if no connection could be made. */
        readonly address = "",
    ) {
        super(cause.message);
    }

    /** Returns the error of a call for this object. */
    about(object: string): EmitError {
        switch (this.outcome) {
            case "connect":
                return new Unconnected(this.address, this.cause);
            case "unknown":
                return new OutcomeUnknown(object, this.cause);
            case "out_of_memory":
                return new OutOfMemory(object);
            case "refused":
                return new Refused(object, this.cause);
        }
    }

    /** Whether the next call should make a new connection. */
    get spoilsConnection(): boolean {
        switch (this.outcome) {
            case "connect":
            case "unknown":
                return true;
            case "out_of_memory":
                return false;
            default:
                return ["READONLY", "NOAUTH", "NOPERM", "WRONGPASS", "MASTERDOWN"].includes(code(this.cause));
        }
    }
}

/** Makes the error of a call about an object from any error. */
export function about(object: string, error: unknown): EmitError | unknown {
    return error instanceof Failed ? error.about(object) : error;
}

/** Returns whether Redis itself has returned this error. */
export function isReplyError(error: unknown): boolean {
    return error instanceof Error && error.name === "ReplyError";
}

/** Returns the first word of an error of Redis, e.g. `WRONGTYPE`. */
export function code(error: Error): string {
    return /^[A-Z]+/.exec(error.message)?.[0] ?? "";
}

/** Redis returns these errors only before it runs a command. */
const NOT_RUN = new Set([
    "EXECABORT",
    "LOADING",
    "READONLY",
    "NOAUTH",
    "NOPERM",
    "WRONGPASS",
    "MOVED",
    "ASK",
    "TRYAGAIN",
    "CROSSSLOT",
    "CLUSTERDOWN",
    "MASTERDOWN",
    "MISCONF",
    "NOREPLICAS",
    "BUSY",
]);

function isOutOfMemory(error: Error): boolean {
    return code(error) === "OOM" || (code(error) === "EXECABORT" && error.message.includes("OOM "));
}

function refusal(error: Error): Failed {
    return new Failed(isOutOfMemory(error) ? "out_of_memory" : "refused", error);
}

/** Classifies an error that came in place of the results of EXEC. */
export function notRun(error: Error): Failed {
    if (!isReplyError(error)) {
        return new Failed("unknown", error);
    }
    return isOutOfMemory(error) || NOT_RUN.has(code(error)) ? refusal(error) : new Failed("unknown", error);
}

export function unreadable(what: string): Failed {
    return new Failed("unknown", new Error(what));
}

/**
 * Reads the replies to MULTI, to the commands, and to EXEC. Returns the result of each command.
 *
 * @throws {Failed} if the transaction has failed as a whole.
 */
export function readTransaction(replies: readonly Reply[]): Reply[] {
    const lost = replies.find((reply) => reply instanceof Error && !isReplyError(reply));
    const executed: Reply = replies[replies.length - 1];
    // The reply to EXEC decides. Without it, the outcome is unknown.
    if (executed instanceof Error && !isReplyError(executed)) {
        throw new Failed("unknown", executed);
    }
    if (lost instanceof Error) {
        throw new Failed("unknown", lost);
    }
    const before = replies.slice(0, -1);
    const refusals = before.filter(isReplyError) as Error[];
    const first = refusals[0];
    // Without MULTI, each command that Redis did not refuse ran at once, by itself.
    if (first !== undefined && before[0] === first && refusals.length < before.length) {
        throw new Failed("unknown", first);
    }
    if (executed instanceof Error) {
        throw first === undefined ? notRun(executed) : refusal(refusals.find(isOutOfMemory) ?? first);
    }
    if (first === undefined && Array.isArray(executed) && executed.length === before.length - 1) {
        return executed;
    }
    throw unreadable("the reply is not that of a transaction");
}

/** Returns the error of a call whose transaction ran, except that this command failed. */
export function commandFailed(object: string, error: Error, key: string): EmitError {
    return code(error) === "WRONGTYPE" ? new WrongType(object, key) : new OutcomeUnknown(object, error);
}

/** Reads the reply to a command that returns a number. */
export function number(object: string, reply: Reply, key: string): number {
    if (typeof reply === "number") {
        return reply;
    }
    throw reply instanceof Error
        ? commandFailed(object, reply, key)
        : new OutcomeUnknown(object, new Error("a command did not return a number"));
}
