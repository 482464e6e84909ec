/** The outcomes of a handler that are not success. A handler throws one of them. */
import { cut } from "../escape.js";
import { checkOptions } from "../options.js";

/** The longest error that a worker keeps, in bytes. */
const ERROR_BYTES_MAX = 1000;
/** The longest wait that a handler may ask for, in ms: 366 days. */
const WAIT_MAX_MS = 366 * 24 * 60 * 60 * 1000;

const ERROR_OPTIONS = { cause: true } satisfies Record<keyof ErrorOptions, true>;

/** An outcome of a handler other than success. */
export abstract class Outcome extends Error {
    /** The word of the protocol. */
    abstract readonly type: "transient" | "rejected" | "unknown" | "postponed" | "unavailable";

    constructor(message?: string, options: ErrorOptions = {}) {
        checkOptions(`new ${new.target.name}`, options, ERROR_OPTIONS);
        super(message, options);
    }

    /** Further members of the answer. */
    members(): Record<string, number> {
        return {};
    }
}

interface TransientOptions {
    readonly retryAfter?: number | undefined;
    readonly cause?: unknown;
}

const TRANSIENT_OPTIONS = { retryAfter: true, cause: true } satisfies Record<keyof TransientOptions, true>;

/** The event failed and may succeed later. Any other error of a handler has the same effect. */
export class Transient extends Outcome {
    override readonly name = "Transient";
    readonly type = "transient";
    /** The wait that replaces the wait of the retry policy, in ms. */
    readonly retryAfter: number | undefined;

    constructor(message?: string, options: TransientOptions = {}) {
        checkOptions("new Transient", options, TRANSIENT_OPTIONS);
        super(message, "cause" in options ? { cause: options.cause } : undefined);
        this.retryAfter =
            options.retryAfter === undefined ? undefined : wait("retryAfter", options.retryAfter);
    }

    override members(): Record<string, number> {
        return this.retryAfter === undefined ? {} : { retry_after_ms: this.retryAfter };
    }
}

/** The event will never succeed. By default it becomes a dead letter. */
export class Rejected extends Outcome {
    override readonly name = "Rejected";
    readonly type = "rejected";
}

/** This program does not know the event, but another one may. */
export class Unknown extends Outcome {
    override readonly name = "Unknown";
    readonly type = "unknown";
}

/** The program cannot handle any event now, e.g. because its database is away. */
export class Unavailable extends Outcome {
    override readonly name = "Unavailable";
    readonly type = "unavailable";
}

/** The event was not tried, and comes again after a time. No attempt is counted. */
export class Postponed extends Outcome {
    override readonly name = "Postponed";
    readonly type = "postponed";
    /** The time, in ms. */
    readonly after: number;

    constructor(after: number, message?: string, options?: ErrorOptions) {
        super(message, options);
        this.after = wait("after", after);
    }

    override members(): Record<string, number> {
        return { after_ms: this.after };
    }
}

function wait(name: string, ms: number): number {
    if (typeof ms !== "number" || !(ms >= 0 && ms <= WAIT_MAX_MS)) {
        throw new RangeError(`${name} is ${String(ms)}; it is 0 to ${WAIT_MAX_MS} ms`);
    }
    return Math.ceil(ms);
}

/** The reason with which the signal of a handler is aborted. */
export class Cancelled extends Error {
    override readonly name = "Cancelled";
}

/** Returns the outcome that a thrown value stands for. */
export function outcomeOf(thrown: unknown): Outcome {
    if (thrown instanceof Outcome) {
        return thrown;
    }
    return new Transient(thrown instanceof Error ? describeError(thrown) : String(thrown), { cause: thrown });
}

/** Returns the text of an error: its name, if it says more than `Error`, and its message. */
function describeError(error: Error): string {
    const message = String(error.message);
    if (error.name === "Error" || error.name === undefined) {
        return message === "" ? "Error" : message;
    }
    return message === "" ? String(error.name) : `${error.name}: ${message}`;
}

/** Returns the text of an outcome, as a worker keeps it. */
export function errorText(outcome: Outcome): string {
    return cut(outcome.message === "" ? outcome.name : String(outcome.message), ERROR_BYTES_MAX);
}
