/** Runs handlers: starts a worker, or serves the worker that has started this program. */
import { Keys } from "../names.js";
import { checkNoOptions, checkOptions } from "../options.js";
import { type Handler, Handlers, type JsonValue } from "./handlers.js";
import { type Log, logToStderr } from "./log.js";
import type { ChildStart } from "./pipes.js";
import { Processes, processNumber } from "./processes.js";
import { findProgram, killedBy, USAGE_CODE, usageError } from "./program.js";
import { CONCURRENCY_MAX } from "./protocol.js";
import { Session, type SessionEnd } from "./session.js";
import { takeStdio } from "./stdio.js";

/** A time: ms, or a text such as `5m` or `1m30s`. */
export type Time = number | string;

/** The settings of a worker. Most of them are options of `seriatim worker`. */
export interface WorkerOptions {
    /** The name of the worker, unique among running workers. Default: the host's name and 8 digits. */
    readonly name?: string | undefined;
    /** The namespace: 1 to 64 of the characters `A-Z a-z 0-9 _ . -`. Default: none. */
    readonly namespace?: string | undefined;
    /** The number of objects whose events are handled at the same time: 1 to 1024. Default: 32. */
    readonly concurrency?: number | undefined;
    /** The number of processes, e.g. one for each core: 1 to 64. Default: 1. */
    readonly processes?: number | undefined;
    /** The retry policy, e.g. `fixed-5m-2`. */
    readonly retry?: string | undefined;
    /** The retry policies of types of events. */
    readonly retryTypes?: Readonly<Record<string, string>> | undefined;
    /** The longest time for an event. After it, the signal of the handler is aborted. Default: 5 minutes. */
    readonly timeout?: Time | undefined;
    /** The longest time of a graceful stop. Default: 25 s. */
    readonly grace?: Time | undefined;
    /** The time after which other workers take over the objects of a killed worker. Default: 5 s. */
    readonly lease?: Time | undefined;
    /** The most events of one object in one batch. */
    readonly batch?: number | undefined;
    /** Write a row to the event log for each event that is over. Default: no. */
    readonly eventLog?: boolean | undefined;
    /** Further options of `seriatim worker`. */
    readonly args?: readonly string[] | undefined;
    /** The path of the program. Default: SERIATIM_BIN, the package for this platform, or PATH. */
    readonly program?: string | undefined;
    /** Whether `run` stops at SIGTERM and SIGINT: the first signal gracefully, a second one at once. Default: yes. */
    readonly signals?: boolean | undefined;
    /** The function that gets messages. Default: a line on standard error. */
    readonly log?: Log | undefined;
}

const WORKER_OPTIONS = {
    name: true,
    namespace: true,
    concurrency: true,
    processes: true,
    retry: true,
    retryTypes: true,
    timeout: true,
    grace: true,
    lease: true,
    batch: true,
    eventLog: true,
    args: true,
    program: true,
    signals: true,
    log: true,
} satisfies Record<keyof WorkerOptions, true>;

const OF_WORKER = "those of the worker hold for all its handlers, and retryTypes has a policy for a type";

/** The worker has ended, but this program has not stopped it. All handlers were cancelled. */
export class WorkerEnded extends Error {
    override readonly name = "WorkerEnded";

    constructor(
        message: string,
        /** The exit code of the program. */
        readonly exitCode: number | undefined,
        options?: ErrorOptions,
    ) {
        super(message, options);
    }
}

/** Meanings of the exit codes of the program. */
const EXITS: Record<number, string> = {
    3: "Redis cannot be reached, or refuses",
    4: "the name of the worker is in use, or another process has taken it",
};

/** A worker with handlers. Use one worker per process. */
export class Worker {
    /** @internal */
    readonly handlers = new Handlers();
    /** @internal */
    readonly keys: Keys;
    private readonly log: Log;
    private readonly concurrency: number;
    private session: Session | undefined;
    private processes: Processes | undefined;
    private stopping: "graceful" | "at once" | undefined;
    private isUsed = false;

    /** @param redis The URL of Redis. Default: the variable SERIATIM_REDIS, or `redis://127.0.0.1:6379`. */
    constructor(
        private readonly redis?: string,
        private readonly options: WorkerOptions = {},
    ) {
        if (redis !== undefined && typeof redis !== "string") {
            throw new TypeError(
                "a worker needs the URL of Redis as a text, because the program seriatim connects to it",
            );
        }
        checkOptions("new Worker", options, WORKER_OPTIONS);
        this.keys = new Keys(options.namespace);
        this.log = options.log ?? logToStderr;
        this.concurrency = within("concurrency", options.concurrency ?? 32, CONCURRENCY_MAX);
        within("processes", options.processes ?? 1, 64);
    }

    /** Registers the handler of the events with this type, the member `type` of the event. */
    on<T = JsonValue>(type: string, handler: Handler<T>): this;
    on<T = JsonValue>(type: string, handler: Handler<T>, options?: unknown): this {
        checkNoOptions("worker.on", options, OF_WORKER);
        this.handlers.on(type, handler);
        return this;
    }

    /** Registers the handler of the events that no handler for a type takes. Without it, they wait for another worker. */
    onOther<T = JsonValue>(handler: Handler<T>): this;
    onOther<T = JsonValue>(handler: Handler<T>, options?: unknown): this {
        checkNoOptions("worker.onOther", options, OF_WORKER);
        this.handlers.onOther(handler);
        return this;
    }

    /**
     * Starts `seriatim worker`, and handles its events. Resolves after a stop. With `processes`, starts this program
     * anew, so many times, and each of these processes has a worker.
     *
     * @throws {ProgramMissing} if there is no program `seriatim`.
     * @throws {WorkerEnded} if the worker has ended, but was not stopped.
     */
    async run(): Promise<void> {
        this.#use();
        const child = processNumber();
        if (child === undefined && (this.options.processes ?? 1) > 1) {
            findProgram(this.options.program);
            this.processes = new Processes(this.options.processes ?? 1, this.log);
            return await this.#withSignals(async () => await this.processes?.run());
        }
        const program = findProgram(this.options.program);
        const env = { ...process.env, ...(this.redis === undefined ? {} : { SERIATIM_REDIS: this.redis }) };
        const start = { type: "child", program, args: this.#args(child?.number), env } as const;
        this.session = new Session(start, this.#settings(), () => child?.ready());
        child?.onStop((how) => (how === "graceful" ? this.stop() : this.stopAtOnce()));
        const session = this.session;
        await this.#withSignals(
            async () => this.#check(start, await session.ends(true)),
            child !== undefined,
        );
    }

    /**
     * Handles the events of the worker that has started this program: `seriatim worker --sink 'exec:node …'`. Ends the
     * process when the worker asks for it, or is dead.
     */
    async serve(): Promise<never> {
        this.#use();
        const pipes = takeStdio();
        // The worker asks for the end in another way.
        process.on("SIGTERM", () => undefined);
        const session = new Session({ type: "parent", ...pipes }, this.#settings());
        const { error, inHand } = await session.ends(false);
        if (error !== undefined) {
            this.log("error", "the worker cannot be served", error);
        }
        process.exit(error === undefined && inHand === 0 ? 0 : 1);
    }

    /** Stops gracefully: the events in hand are finished, and `run` resolves. */
    stop(): void {
        this.stopping ??= "graceful";
        this.processes?.stop("graceful");
        this.session?.bye();
    }

    /** Stops at once: all handlers are cancelled, and their events come again. */
    stopAtOnce(): void {
        this.stopping = "at once";
        this.processes?.stop("at once");
        this.session?.leave("the worker stops at once");
    }

    #use(): void {
        if (this.isUsed) {
            throw new Error("a worker runs once; make another one");
        }
        if (this.handlers.isEmpty) {
            throw new Error("the worker has no handler; register one with on()");
        }
        this.isUsed = true;
    }

    #settings() {
        const { handlers, keys, concurrency, log } = this;
        return { handlers, keys, concurrency, log };
    }

    /** The arguments of the program. */
    #args(number: number | undefined): string[] {
        const {
            name,
            namespace,
            retry,
            retryTypes = {},
            timeout,
            grace,
            lease,
            batch,
            eventLog,
            args = [],
        } = this.options;
        const all = ["worker", "--sink", "stdio", "--concurrency", String(this.concurrency)];
        const add = (flag: string, value: Time | undefined) => {
            if (value !== undefined) {
                all.push(flag, String(value));
            }
        };
        add("--name", name === undefined || number === undefined ? name : `${name}-${number}`);
        add("--namespace", namespace);
        add("--retry", retry);
        for (const [type, policy] of Object.entries(retryTypes)) {
            add("--retry-type", `${type}=${policy}`);
        }
        add("--exec-timeout", time(timeout));
        add("--grace", time(grace));
        add("--lease", time(lease));
        add("--batch", batch);
        return [...all, ...(eventLog ? ["--event-log"] : []), ...args];
    }

    /** Looks at the end of the worker. */
    #check({ program, args, env }: ChildStart, { exit, wasReady, error }: SessionEnd): void {
        if (error !== undefined) {
            throw new WorkerEnded(`${program} cannot be used: ${error.message}`, undefined, { cause: error });
        }
        if (exit?.failed !== undefined) {
            throw new WorkerEnded(`${program} cannot be started: ${exit.failed}`, undefined);
        }
        const code = exit?.code ?? undefined;
        if (this.stopping === "at once" || code === 0) {
            return;
        }
        if (code === USAGE_CODE && !wasReady) {
            const refusal = usageError(program, args, env) ?? "an option is wrong; its message is above";
            throw new WorkerEnded(`${program} has refused its options: ${refusal}`, code);
        }
        const why = code === undefined ? undefined : EXITS[code];
        const how = exit?.signal != null ? killedBy(exit.signal) : `ended with exit code ${code}`;
        const hint = wasReady
            ? "its handlers were cancelled, and their events come again"
            : "it was not ready before; its log is above";
        throw new WorkerEnded(`${program} ${how}${why === undefined ? "" : ` (${why})`}; ${hint}`, code);
    }

    /** Stops at signals while `work` is under way. */
    async #withSignals(work: () => Promise<void>, isChild = false): Promise<void> {
        const react = () => {
            // The parent of this process reacts to a Ctrl-C on the terminal, and tells it.
            if (!isChild) {
                if (this.stopping === undefined) {
                    this.log("info", "stops when the events in hand are over; a second signal stops at once");
                    this.stop();
                } else {
                    this.stopAtOnce();
                }
            }
        };
        const signals = this.options.signals === false ? [] : (["SIGTERM", "SIGINT"] as const);
        for (const signal of signals) {
            process.on(signal, react);
        }
        try {
            await work();
        } finally {
            for (const signal of signals) {
                process.off(signal, react);
            }
        }
    }
}

function within(name: string, value: number, most: number): number {
    if (!Number.isInteger(value) || value < 1 || value > most) {
        throw new RangeError(`${name} is ${String(value)}; it is 1 to ${most}`);
    }
    return value;
}

/** Returns a time as the program reads it. */
function time(value: Time | undefined): string | undefined {
    return typeof value === "number" ? `${Math.ceil(value)}ms` : value;
}
