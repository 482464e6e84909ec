/**
 * The connection of an emitter. The emitter makes it itself, because a client that repeats commands by itself
 * after a loss of the connection could queue an event twice. All calls share the connection. After a loss, the next
 * call makes a new one before it sends anything.
 *
 * If an attempt to connect fails, all calls that wait for it get its error.
 */
import { Redis, type RedisOptions } from "ioredis";
import type { ReplicaWait } from "./replicas.js";
import { Failed, isReplyError, Replies, type Reply, readTransaction } from "./reply.js";

/** One command: its name and its arguments. */
export type Command = readonly [name: string, ...args: (string | number)[]];

/** The settings that keep a client from sending anything twice, or later than a call. */
const ONCE: RedisOptions = {
    lazyConnect: true,
    retryStrategy: () => null,
    sentinelRetryStrategy: () => null,
    maxRetriesPerRequest: null,
    enableOfflineQueue: false,
    autoResendUnfulfilledCommands: false,
    autoResubscribe: false,
    enableAutoPipelining: false,
    enableReadyCheck: false,
    keyPrefix: "",
    stringNumbers: false,
    disableClientInfo: true,
    reconnectOnError: null,
};

/** The settings that let a command block longer than the time limits of the caller's client. */
const PATIENT: RedisOptions = { commandTimeout: undefined, socketTimeout: undefined };

export interface Timeouts {
    /** The longest time of an attempt to connect, in ms. */
    readonly connectMs: number;
    /** The longest time from a call to its reply, in ms, without the wait for replicas. */
    readonly replyMs: number;
}

/** The part of a pipeline that is used here. Its type has other parameters in each version of ioredis. */
interface Pipe {
    multi(): unknown;
    call(name: string, args: readonly (string | number)[]): unknown;
    exec(): Promise<[error: Error | null, reply: Reply][]>;
}

/** Checks a time or another setting. */
export function positive(name: string, value: number): number {
    if (typeof value !== "number" || !(value > 0)) {
        throw new TypeError(`${name} is ${String(value)}; it is a number above 0`);
    }
    return value;
}

/** Awaits a reply, but no longer than this time. */
export async function inTime<T>(reply: Promise<T>, ms: number): Promise<T> {
    let timer: NodeJS.Timeout | undefined;
    const late = new Promise<never>((_, reject) => {
        timer = setTimeout(() => reject(new Error(`no reply within ${Math.ceil(ms)} ms`)), ms);
    });
    try {
        return await Promise.race([reply, late]);
    } finally {
        clearTimeout(timer);
    }
}

/** A connection, with the calls under way. */
class Live {
    private underWay = 0;
    private isGone = false;
    /** The refusal of transactions, if the user lacks the right to send them. */
    refusal: Error | undefined;
    /** The last wait for replicas that was sent, and the one that is sent behind it. */
    private lastWait: Promise<Reply> = Promise.resolve(undefined);
    private nextWait: Promise<Reply> | undefined;

    constructor(
        readonly client: Redis,
        private readonly replyMs: number,
    ) {}

    get isUsable(): boolean {
        return !this.isGone && this.client.status === "ready";
    }

    /** Uses the connection for no further call. It is closed when the calls under way have ended. */
    leave(): void {
        this.isGone = true;
        if (this.underWay === 0) {
            this.client.disconnect();
        }
    }

    /** Awaits a reply, but no longer than the time limit. */
    async within<T>(reply: Promise<T>): Promise<T> {
        this.underWay += 1;
        try {
            return await inTime(reply, this.replyMs);
        } finally {
            this.underWay -= 1;
            if (this.isGone) {
                this.leave();
            }
        }
    }

    /** Sends a transaction, and returns the replies to MULTI, to each command, and to EXEC. */
    async replies(commands: readonly Command[]): Promise<Reply[]> {
        const pipe = this.client.pipeline() as unknown as Pipe;
        pipe.multi();
        for (const [name, ...args] of commands) {
            pipe.call(name, args);
        }
        // The first call adds EXEC, and the second one sends.
        void pipe.exec();
        const replies = await this.within(pipe.exec());
        return replies.map(([error, reply]) => error ?? reply);
    }

    /**
     * Waits until replicas have all that this connection has sent so far. Returns the reply, or the error. Redis
     * reads nothing behind a wait until it ends. So only one is under way, and all calls meanwhile share the next one.
     */
    replicated(wait: ReplicaWait): Promise<Reply> {
        this.nextWait ??= this.lastWait.then(() => {
            this.nextWait = undefined;
            this.lastWait = this.within(ask(this.client, wait.command)).catch((error: unknown) => error);
            return this.lastWait;
        });
        return this.nextWait;
    }
}

/** Sends a command, and returns its reply. */
async function ask(client: Redis, [name, ...args]: Command): Promise<Reply> {
    return await client.call(name, args);
}

export class Link {
    private live: Live | undefined;
    private connecting: Promise<Live> | undefined;
    private isClosed = false;

    constructor(
        private readonly open: (options: RedisOptions) => Redis,
        private readonly timeouts: Timeouts,
        /** The wait behind each transaction. */
        private readonly wait?: ReplicaWait | undefined,
    ) {}

    /** Whether each transaction waits for replicas. */
    get waits(): boolean {
        return this.wait !== undefined;
    }

    get isConnected(): boolean {
        return this.live?.isUsable ?? false;
    }

    /** Connects, if there is no connection. */
    async connect(): Promise<void> {
        await this.ready();
    }

    /**
     * Sends a transaction once, and returns its results.
     *
     * @throws {Failed}
     */
    async transact(commands: readonly Command[]): Promise<Replies> {
        const { wait } = this;
        let live = await this.ready();
        try {
            if (live.refusal !== undefined) {
                // The next call makes a new connection, because the user may have got the right by then.
                this.forget(live);
                throw new Failed("refused", live.refusal);
            }
            let [replies, waited] = await sent(live, commands, wait);
            if (wasUnsent(replies)) {
                this.forget(live);
                live = await this.ready();
                [replies, waited] = await sent(live, commands, wait);
            }
            return new Replies(readTransaction(replies), wait?.read(waited));
        } catch (error) {
            const failed = error instanceof Failed ? error : new Failed("unknown", error as Error);
            if (failed.spoilsConnection) {
                this.forget(live);
            }
            throw failed;
        }
    }

    /** Reads all fields of a hash. */
    async hash(key: string): Promise<Record<string, string>> {
        const live = await this.ready();
        return await live.within(live.client.hgetall(key));
    }

    /** Reads strings. */
    async values(keys: readonly string[]): Promise<(string | null)[]> {
        const live = await this.ready();
        return await live.within(live.client.mget(...keys));
    }

    /** Makes another connection, which may block. The caller disconnects it. */
    async reader(): Promise<Redis> {
        return await this.dial(PATIENT);
    }

    /** The longest time from a call to its reply, in ms. */
    get replyMs(): number {
        return this.timeouts.replyMs;
    }

    /** Closes the connection, after the calls under way. */
    async close(): Promise<void> {
        this.isClosed = true;
        const live = this.live ?? (await this.connecting?.catch(() => undefined));
        this.live = undefined;
        live?.leave();
    }

    private forget(live: Live): void {
        live.leave();
        if (this.live === live) {
            this.live = undefined;
        }
    }

    private ready(): Promise<Live> | Live {
        if (this.isClosed) {
            throw new Failed("connect", new Error("the emitter is closed"), "its address");
        }
        if (this.live?.isUsable) {
            return this.live;
        }
        this.connecting ??= this.attempt().finally(() => {
            this.connecting = undefined;
        });
        return this.connecting;
    }

    private async attempt(): Promise<Live> {
        const { connectMs, replyMs } = this.timeouts;
        const { wait } = this;
        let refusal: Error | undefined;
        const client = await this.dial(wait === undefined ? {} : PATIENT, async (client) => {
            await inTime(mustAcceptWrites(client), connectMs);
            refusal = await inTime(refusalOfTransactions(client), connectMs);
            if (wait !== undefined) {
                const examined = ask(client, wait.examines).catch((error: Error) => {
                    throw wait.refusal(error);
                });
                await inTime(examined, connectMs);
            }
        });
        const ready = new Live(client, replyMs + (wait?.timeoutMs ?? 0));
        ready.refusal = refusal;
        if (this.isClosed) {
            ready.leave();
        } else {
            this.live = ready;
        }
        return ready;
    }

    /** Makes a connection, and prepares it. */
    private async dial(options: RedisOptions, prepare?: (client: Redis) => Promise<void>): Promise<Redis> {
        const connectTimeout = this.timeouts.connectMs;
        const client = this.open({ ...ONCE, ...options, connectTimeout });
        // The library tells the reason of a failure only in this event.
        let reason: Error | undefined;
        client.on("error", (error: Error) => {
            reason ??= error;
        });
        try {
            await inTime(client.connect(), connectTimeout);
            await prepare?.(client);
        } catch (error) {
            client.disconnect();
            throw new Failed("connect", reason ?? (error as Error), address(client.options));
        }
        return client;
    }
}

/** Sends a transaction, and behind it the wait for replicas. Returns both replies. */
async function sent(
    live: Live,
    commands: readonly Command[],
    wait: ReplicaWait | undefined,
): Promise<[replies: Reply[], waited: Reply]> {
    const sending = live.replies(commands);
    const waiting = wait === undefined ? undefined : live.replicated(wait);
    return [await sending, await waiting];
}

/** Returns whether the connection was lost before anything was sent. */
function wasUnsent([multi]: readonly Reply[]): boolean {
    return multi instanceof Error && multi.message.startsWith("Stream isn't writeable");
}

/** Returns the address, without user and password. */
function address({ path, host, port, sentinels }: RedisOptions): string {
    if (sentinels != null) {
        return `the master of ${sentinels.map(({ host, port }) => `${host}:${port ?? 26379}`).join(",")}`;
    }
    return path ?? `${host}:${port}`;
}

/** @throws if the server is a replica. */
async function mustAcceptWrites(client: Redis): Promise<void> {
    const about: unknown = await client.call("HELLO").catch((error: Error) => {
        if (isReplyError(error) && error.message.includes("unknown command")) {
            return [];
        }
        throw error;
    });
    const entries = Array.isArray(about) ? about : Object.entries(about ?? {}).flat();
    if (entries[entries.indexOf("role") + 1] === "replica") {
        throw new Error("READONLY this server is a replica, which accepts no writes; connect to its master");
    }
}

/**
 * Returns the refusal if the user lacks the right to `EXEC` or `MULTI`. Without the right to `MULTI`, the commands of
 * an emit would run one by one. `MULTI` is sent only after `EXEC` alone has shown the right to `EXEC`.
 */
async function refusalOfTransactions(client: Redis): Promise<Error | undefined> {
    for (const command of ["EXEC", "MULTI"]) {
        const replies =
            command === "EXEC" ? [client.call("EXEC")] : [client.call("MULTI"), client.call("EXEC")];
        const [first] = await Promise.allSettled(replies);
        if (first?.status !== "rejected") {
            continue;
        }
        const error = first.reason as Error;
        // A refused EXEC is an EXECABORT that names NOPERM.
        if (isReplyError(error) && error.message.includes("NOPERM")) {
            return error;
        }
        // Outside of a transaction, EXEC is an error.
        if (command === "MULTI" || !error.message.includes("without MULTI")) {
            throw error;
        }
    }
    return undefined;
}

/** A client of ioredis, of any of its versions. */
export interface ClientLike {
    duplicate(options?: object): unknown;
}

/** A URL, the options of ioredis, or a client of ioredis. */
export type RedisLike = string | RedisOptions | ClientLike;

/** Returns a function that makes clients for this address, these options, or like this client. */
export function opener(redis: RedisLike): (options: RedisOptions) => Redis {
    if (typeof redis === "string") {
        if (!/^(redis|rediss|unix):\/\/./.test(redis)) {
            // The text is not repeated, because it may have a password.
            throw new TypeError(
                "the address of Redis is not redis://…, rediss://… or unix:///…; for Sentinels, give the options of ioredis",
            );
        }
        return (options) => new Redis(redis, options);
    }
    if (isClient(redis)) {
        return (options) => redis.duplicate(options) as Redis;
    }
    return (options) => new Redis({ ...redis, ...options });
}

/** Returns whether this is a client. A program may have two copies of ioredis, so the class does not tell. */
function isClient(redis: Exclude<RedisLike, string>): redis is ClientLike {
    if (typeof redis !== "object" || redis === null) {
        throw new TypeError(
            "the emitter needs a Redis: a URL, the options of ioredis, or a client of ioredis",
        );
    }
    const { duplicate, isCluster } = redis as { duplicate?: unknown; isCluster?: boolean };
    if (isCluster === true) {
        throw new TypeError("the emitter needs a single Redis, not a Cluster: give it a client of one node");
    }
    return typeof duplicate === "function";
}
