/** An emit inside a transaction of the caller: the positions of its commands, and its outcome. */
import { type EmitError, OutcomeUnknown, Refused } from "../errors.js";
import type { Keys } from "../names.js";
import type { Draft } from "./draft.js";
import { code, commandFailed, isReplyError, notRun } from "./reply.js";

/** A transaction of ioredis, `redis.multi()`, of any of its versions. */
export interface Transaction {
    readonly length: number;
    call(command: string, args: (string | number)[]): unknown;
}

/** The reply of `multi.exec()`. */
export type MultiReply = [error: Error | null, result: unknown][] | null;

/**
 * An emit that `Emitter.appendTo` has put into a transaction of the caller. Its outcome is known when the
 * transaction has a reply.
 */
export class Appended {
    constructor(
        private readonly object: string,
        /** Positions of the first command of the emit, and of its two pushes, among the commands. */
        private readonly first: number,
        private readonly push: number,
        private readonly eventsKey: string,
        private readonly markersKey: string,
    ) {}

    /**
     * Returns if the events are queued. `reply` is the reply of `exec()` of the transaction. Another command of the
     * caller may have failed all the same, because Redis does not roll back.
     *
     * @throws {EmitError}
     */
    outcome(reply: MultiReply): void {
        if (reply === null) {
            throw new Refused(this.object, new Error("a key watched on this connection has changed"));
        }
        const mark = this.push + 1;
        if (reply.length <= mark) {
            throw new OutcomeUnknown(this.object, new Error("the reply is not that of the transaction"));
        }
        for (let at = this.first; at <= mark; at += 1) {
            const error = reply[at]?.[0];
            if (error != null) {
                const key = at === this.push ? this.eventsKey : this.markersKey;
                throw at >= this.push
                    ? commandFailed(this.object, error, key)
                    : new OutcomeUnknown(this.object, error);
            }
        }
    }

    /** Returns the error of the emit if `exec()` of the transaction was rejected with `error`. */
    failure(error: unknown): EmitError {
        const cause = error instanceof Error ? error : new Error(String(error));
        if (!isReplyError(cause)) {
            return new OutcomeUnknown(this.object, cause);
        }
        // ioredis lists the errors of MULTI and of the commands, but not their positions. If EXEC was refused
        // because there was no MULTI, the commands may have run one by one.
        const { previousErrors = [] } = cause as { previousErrors?: unknown };
        const earlier = (Array.isArray(previousErrors) ? previousErrors.filter(isReplyError) : []) as Error[];
        const wasDiscarded = code(cause) === "EXECABORT";
        const memory = earlier.find((one) => code(one) === "OOM");
        const counted = wasDiscarded ? (memory ?? earlier[0] ?? cause) : cause;
        if (wasDiscarded && earlier.length > 0 && memory === undefined) {
            return new Refused(this.object, counted);
        }
        return notRun(counted).about(this.object);
    }
}

/** Appends the commands of an emit to a transaction of the caller. */
export function appendTo(multi: Transaction, draft: Draft, keys: Keys): Appended {
    if (typeof multi?.call !== "function" || typeof multi.length !== "number") {
        throw new TypeError(
            "the first argument of appendTo is a transaction of ioredis: the value that redis.multi() returns",
        );
    }
    const { redis, _transactions: transactions } = multi as {
        redis?: { options?: { keyPrefix?: string } };
        _transactions?: number;
    };
    if (transactions === 0) {
        throw new TypeError("appendTo needs a transaction: redis.multi(), not redis.pipeline()");
    }
    if (redis?.options?.keyPrefix) {
        throw new TypeError(
            "the client has a keyPrefix, which would change the keys of the emit; use a client without one",
        );
    }
    // The first command of the transaction is MULTI, which has no result in the reply.
    const first = multi.length - 1;
    for (const [name, ...args] of draft.commands()) {
        multi.call(name, args);
    }
    const push = first + (draft.data === undefined ? 0 : 1);
    return new Appended(draft.object, first, push, keys.events(draft.object), keys.markers);
}
