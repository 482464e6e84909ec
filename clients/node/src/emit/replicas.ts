/** The wait for replicas, behind the transactions of an emitter. */
import type { Command } from "./link.js";
import { Failed, isReplyError, type Reply } from "./reply.js";

/** The shortest and the longest wait, in ms. A wait of 0 would never end. */
const WAIT_MIN_MS = 1;
const WAIT_MAX_MS = 60_000;

/** Too few replicas have a write. */
export interface TooFew {
    readonly reached: number;
    readonly wanted: number;
    /** Whether the write should be on the disk of the master, but is not. */
    readonly notLocal: boolean;
}

/** Waits until enough replicas have all writes of a connection, or until the time is over. */
export class ReplicaWait {
    private constructor(
        private readonly replicas: number,
        readonly timeoutMs: number,
        /** Whether the writes must be on the disk of the master, too, and on those of the replicas. */
        private readonly local: boolean,
    ) {}

    /** Returns none if there is nothing to wait for. */
    static of(replicas: number, timeoutMs: number, local: boolean): ReplicaWait | undefined {
        if (!Number.isSafeInteger(replicas) || replicas < 0) {
            throw new TypeError(`wait is ${String(replicas)}; it is a number of replicas from 0 on`);
        }
        if (typeof timeoutMs !== "number" || Number.isNaN(timeoutMs)) {
            throw new TypeError(`waitTimeout is ${String(timeoutMs)}; it is a number of ms`);
        }
        if (replicas === 0 && !local) {
            return undefined;
        }
        const ms = Math.ceil(Math.min(Math.max(timeoutMs, WAIT_MIN_MS), WAIT_MAX_MS));
        return new ReplicaWait(replicas, ms, local);
    }

    get command(): Command {
        return this.local
            ? ["WAITAOF", 1, this.replicas, this.timeoutMs]
            : ["WAIT", this.replicas, this.timeoutMs];
    }

    /** A command that ends at once, and shows whether the server can wait so. */
    get examines(): Command {
        return this.local ? ["WAITAOF", 1, 0, 1] : ["WAIT", 0, 1];
    }

    /** Returns the error of a server that cannot wait so, from the error of `examines`. */
    refusal(error: Error): Error {
        const isUnknown = this.local && isReplyError(error) && error.message.includes("unknown command");
        return isUnknown
            ? new Error("the server has no WAITAOF: waitLocal needs Redis 7.2 or newer, or Valkey")
            : error;
    }

    /** Reads the reply to the wait. Returns none if enough replicas have the writes. */
    read(reply: Reply): TooFew | undefined {
        if (reply instanceof Error) {
            throw new Failed("unknown", reply);
        }
        const [local, reached]: unknown[] = Array.isArray(reply) ? reply : [1, reply];
        if (Array.isArray(reply) !== this.local || typeof local !== "number" || typeof reached !== "number") {
            throw new Failed("unknown", new Error("WAIT did not return a number"));
        }
        const notLocal = local < 1;
        const isEnough = reached >= this.replicas && !notLocal;
        return isEnough ? undefined : { reached, wanted: this.replicas, notLocal };
    }
}
