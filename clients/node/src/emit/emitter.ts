/** Emits events. An emit is one plain transaction, or one script if it has an idempotency key or limits. */
import { EmitError, KeyReused, NotAwaitable, Unconnected } from "../errors.js";
import { EVENT_BYTES_MAX } from "../event.js";
import { checkAwaited, checkKey, Keys, uniqueKey } from "../names.js";
import { checkOptions } from "../options.js";
import type { JsonValue } from "../worker/handlers.js";
import { type Appended, appendTo, type Transaction } from "./appended.js";
import {
    Awaited,
    CALL_OPTIONS,
    type CallOptions,
    resultOf,
    WAIT_MS,
    WAIT_OPTIONS,
    type WaitOptions,
} from "./awaited.js";
import { Draft, EMIT_PARTS, type EmitParts, type Once } from "./draft.js";
import type { EventEnd } from "./end.js";
import { type Limit, Limits } from "./limits.js";
import { Link, opener, positive, type RedisLike } from "./link.js";
import { type EmittedMany, type Many, ManySender } from "./many.js";
import { ReplicaWait } from "./replicas.js";
import { about } from "./reply.js";
import {
    type Cancelled,
    type Scheduled,
    type ScheduleItem,
    type ScheduleOptions,
    Scheduler,
} from "./schedule.js";
import { callScript, EMIT, readEmit } from "./scripts.js";
import { Waits } from "./waits.js";

/** The default window of an idempotency key, in ms: 24 hours. Then the shortest and the longest one. */
const WINDOW_MS = 24 * 60 * 60 * 1000;
const WINDOW_MIN_MS = 60 * 1000;
const WINDOW_MAX_MS = 366 * 24 * 60 * 60 * 1000;
/** The default time for which the end of an awaited event is kept, in ms. Then the longest one. */
const KEEP_MS = 60 * 60 * 1000;
const KEEP_MAX_MS = 7 * 24 * 60 * 60 * 1000;
/** The most times that an emit with an idempotency key is sent while its outcome is unknown. */
const TRIES = 4;
/** The wait before the second try, in ms. Each further wait is twice as long. */
const TRY_AGAIN_MS = 100;

/** The settings of an emitter. */
export interface EmitterOptions {
    /** The namespace: 1 to 64 of the characters `A-Z a-z 0-9 _ . -`. Default: none. */
    readonly namespace?: string | undefined;
    /** The longest time of an attempt to connect, in ms. Default: 5000. */
    readonly connectTimeout?: number | undefined;
    /** The longest time from a call to the reply of Redis, in ms. Default: 5000. */
    readonly replyTimeout?: number | undefined;
    /** The largest event, subevent or data, in bytes. Default: 1 MiB. */
    readonly eventBytesMax?: number | undefined;
    /** The most events in one transaction of `emitMany` or `scheduleMany`. Default: 1024. */
    readonly chunkEventsMax?: number | undefined;
    /** The bytes of names and events after which these calls send a transaction. Default: 1 MiB. */
    readonly chunkBytesMax?: number | undefined;
    /**
     * Each call waits until this number of replicas has its events. Otherwise it fails with `Unreplicated`, and its
     * events are queued nevertheless. Calls at the same time share waits. An emit of `appendTo` does not wait. Default: 0.
     */
    readonly wait?: number | undefined;
    /** The longest wait for replicas, in ms: 1 ms to 1 minute. Default: 1000. */
    readonly waitTimeout?: number | undefined;
    /**
     * Also waits until the events are on the disks of the master and of these replicas (`WAITAOF`, Redis 7.2 or Valkey).
     * Default: false.
     */
    readonly waitLocal?: boolean | undefined;
}

const EMITTER_OPTIONS = {
    namespace: true,
    connectTimeout: true,
    replyTimeout: true,
    eventBytesMax: true,
    chunkEventsMax: true,
    chunkBytesMax: true,
    wait: true,
    waitTimeout: true,
    waitLocal: true,
} satisfies Record<keyof EmitterOptions, true>;

/** The settings of one emit. */
export interface EmitOptions extends EmitParts {
    /**
     * A key that belongs to the object: 1 to 256 bytes without control characters. If the same emit is repeated
     * within the window, it is not queued again.
     */
    readonly idempotencyKey?: string | undefined;
    /** The time for which Redis keeps the key, in ms: 1 minute to 366 days. Default: 24 hours. */
    readonly window?: number | undefined;
    readonly awaited?: false | undefined;
}

/** The settings of an emit whose end is awaited. Such an emit has one event and no data. */
export interface AwaitedOptions {
    readonly awaited: true;
    /** The name of the event: 1 to 248 bytes without control characters. Default: a new one. */
    readonly idempotencyKey?: string | undefined;
    /**
     * The time for which Redis keeps the name and the end, in ms: 1 minute to 7 days. Default: 1 hour, or 24 hours with
     * an idempotency key.
     */
    readonly keep?: number | undefined;
}

/** Both kinds of emits. A member of the other kind has an error of its own. */
const EMIT_OPTIONS = {
    ...EMIT_PARTS,
    idempotencyKey: true,
    window: true,
    awaited: true,
    keep: true,
} satisfies Record<keyof EmitOptions | keyof AwaitedOptions, true>;

const NO_KEY =
    "an emit in your own transaction has no idempotency key: write a key of your own in the transaction, and look at it under WATCH";
/** Options of `emit` that `appendTo` does not have. */
const NOT_APPENDED = {
    idempotencyKey: NO_KEY,
    window: NO_KEY,
    awaited: `its end cannot be awaited, because ${NO_KEY}`,
    keep: `its end cannot be awaited, because ${NO_KEY}`,
} satisfies Record<Exclude<keyof typeof EMIT_OPTIONS, keyof EmitParts>, string>;

/** An emit that Redis has acknowledged. */
export interface Emitted {
    /** Number of events that the emit has queued: the event and its subevents. */
    readonly events: number;
    /** Number of events in the object's queue right after the emit. */
    readonly queued: number;
    /** Whether an emit with the same idempotency key was done before. Then this one has queued nothing. */
    readonly repeated: boolean;
}

/**
 * Emits events for objects. All calls share one connection, which the emitter makes itself.
 *
 * If an emit has resolved, it is ordered before every emit of the same object that begins later, in any process.
 */
export class Emitter implements AsyncDisposable {
    private readonly keys: Keys;
    private readonly link: Link;
    private readonly limits: Limits;
    private readonly eventBytesMax: number;
    private readonly scheduler: Scheduler;
    private readonly many: Many;
    private readonly waits: Waits;
    private readonly underWay = new Set<Promise<unknown>>();
    private isClosed = false;

    /**
     * @param redis A URL (`redis://`, `rediss://`, `unix://`), the options of ioredis, or a client of ioredis. With
     * a client, the emitter makes a connection of its own with the client's options.
     */
    constructor(redis: RedisLike, options: EmitterOptions = {}) {
        checkOptions("new Emitter", options, EMITTER_OPTIONS);
        const { connectTimeout = 5000, replyTimeout = 5000 } = options;
        const { wait = 0, waitTimeout = 1000, waitLocal = false } = options;
        this.keys = new Keys(options.namespace);
        this.link = new Link(
            opener(redis),
            {
                connectMs: positive("connectTimeout", connectTimeout),
                replyMs: positive("replyTimeout", replyTimeout),
            },
            ReplicaWait.of(wait, waitTimeout, waitLocal),
        );
        this.limits = new Limits(this.link, this.keys.limits);
        this.eventBytesMax = positive("eventBytesMax", options.eventBytesMax ?? EVENT_BYTES_MAX);
        this.waits = new Waits(this.link, this.keys);
        this.many = {
            keys: this.keys,
            link: this.link,
            limits: this.limits,
            eventBytesMax: this.eventBytesMax,
            chunkEventsMax: positive("chunkEventsMax", options.chunkEventsMax ?? 1024),
            chunkBytesMax: positive("chunkBytesMax", options.chunkBytesMax ?? 1024 * 1024),
        };
        this.scheduler = new Scheduler(this.many);
    }

    /** Connects, if there is no connection. Without this call, the first emit connects. */
    async connect(): Promise<void> {
        await this.run(async () => {
            try {
                await this.link.connect();
            } catch (error) {
                throw about("", error);
            }
            await this.limits.known();
        });
    }

    /** Whether there is a connection, as far as the emitter knows. */
    get isConnected(): boolean {
        return this.link.isConnected;
    }

    /** Ends all waits, and closes the connection after the calls under way. */
    async close(): Promise<void> {
        this.isClosed = true;
        this.waits.close();
        await Promise.allSettled(this.underWay);
        await this.link.close();
    }

    async [Symbol.asyncDispose](): Promise<void> {
        await this.close();
    }

    /**
     * Emits an event: a JSON value, or a `RawJson`. When the promise resolves, the event is queued, and its position
     * in the object's order is fixed.
     *
     * @throws {EmitError} Only after `OutcomeUnknown`, `Unreplicated` and `WrongType` something may be queued.
     */
    async emit(object: string, event: unknown, options?: EmitOptions): Promise<Emitted>;
    /** Emits an event whose end is awaited. Such an emit has one event and no data. */
    async emit(object: string, event: unknown, options: AwaitedOptions): Promise<Awaited>;
    async emit(
        object: string,
        event: unknown,
        options: EmitOptions | AwaitedOptions = {},
    ): Promise<Emitted | Awaited> {
        checkOptions("emit", options, EMIT_OPTIONS);
        const parts = options as EmitParts;
        const draft = new Draft(this.keys, object, event, parts, this.eventBytesMax);
        const once = options.awaited ? this.awaitedOnce(draft, options) : this.once(options);
        if (once !== undefined) {
            draft.checkFitsScript();
        }
        const emitted = await this.run(() => this.send(draft, once));
        return once?.inbox === undefined
            ? emitted
            : new Awaited(this.waits, { object, name: once.key }, emitted);
    }

    /**
     * Emits an event, waits until it has ended, and returns the result that its handler has set. Without a result this
     * is `undefined`. If several handlers have set one, this is an object of all, by handler id.
     *
     * @throws {EmitError} if the event is not queued.
     * @throws {EventFailed} if the event was not delivered.
     * @throws {WaitError} if its end is not known, e.g. `EndTimedOut`: the event goes on.
     */
    async call<T = JsonValue | undefined>(
        object: string,
        event: unknown,
        options: CallOptions = {},
    ): Promise<T> {
        checkOptions("call", options, CALL_OPTIONS);
        const { timeout = WAIT_MS, signal } = options;
        signal?.throwIfAborted();
        positive("timeout", timeout);
        const draft = new Draft(this.keys, object, event, {}, this.eventBytesMax);
        const once = this.awaitedOnce(draft, { awaited: true });
        draft.checkFitsScript();
        const named = { object, name: once.key };
        // No earlier event has this name. So the wait may begin before the emit.
        const wait = this.waits.join(named);
        try {
            await this.run(() => this.send(draft, once)).catch((error: unknown) => {
                if (error instanceof EmitError) {
                    error.eventName = named.name;
                }
                throw error;
            });
            return resultOf<T>(named, await wait.end(timeout, signal));
        } finally {
            wait.leave();
        }
    }

    /**
     * Waits until the event with this name has ended, and returns how it has ended. The name is that of an awaited
     * emit, also of another process. `timeout` has at least 100 ms.
     *
     * All waits share one connection. The end of an event of this emitter comes at once, any other within 100 ms.
     *
     * @throws {WaitError} e.g. `EndTimedOut`.
     */
    async endOf(
        object: string,
        name: string,
        timeout = WAIT_MS,
        options: WaitOptions = {},
    ): Promise<EventEnd> {
        checkOptions("endOf", options, WAIT_OPTIONS);
        const named = { object: this.keys.object(object), name: checkKey(name) };
        return await this.waits.endOf(named, positive("timeout", timeout), options.signal);
    }

    /**
     * Emits many events, each a pair of an object and an event, in transactions of up to 1024 events or 1 MiB. The
     * events of an object keep their order. Each transaction takes effect as a whole; the entire call does not.
     *
     * @throws {EmitManyError} if some events are not acknowledged.
     */
    async emitMany(
        events:
            | Iterable<readonly [object: string, event: unknown]>
            | AsyncIterable<readonly [object: string, event: unknown]>,
    ): Promise<EmittedMany> {
        return await this.run(() => new ManySender(this.many).send(events));
    }

    /**
     * Appends the commands of an emit to a transaction of the caller, `redis.multi()`. The emit takes effect
     * together with the commands of the caller. Limits do not bind such an emit.
     *
     * @throws {EmitError} if a name or an event is invalid. Then the transaction is unchanged.
     */
    appendTo(multi: Transaction, object: string, event: unknown, parts: EmitParts = {}): Appended {
        checkOptions("appendTo", parts, EMIT_PARTS, NOT_APPENDED);
        return appendTo(multi, new Draft(this.keys, object, event, parts, this.eventBytesMax), this.keys);
    }

    /**
     * Schedules an event: it is queued when it is due. Without `after` and `at` it is due at once.
     *
     * @throws {EmitError} With a key and a time `at`, it is safe to schedule again after `OutcomeUnknown`.
     */
    async schedule(object: string, event: unknown, options: ScheduleOptions = {}): Promise<Scheduled> {
        return await this.run(() => this.scheduler.schedule(object, event, options));
    }

    /**
     * Schedules many events, each a list of an object, an event and the options, in transactions of up to 1024 events
     * or 1 MiB. All times `after` count from the beginning of the call.
     *
     * @throws {ScheduleManyError} at the first failure. A schedule with a key can be sent again safely.
     */
    async scheduleMany(
        schedules: Iterable<ScheduleItem> | AsyncIterable<ScheduleItem>,
    ): Promise<Scheduled[]> {
        return await this.run(() => this.scheduler.scheduleMany(schedules));
    }

    /**
     * Cancels the event with this key. This works until a worker takes the event, and again while the event waits
     * for a retry or an operator. To cancel again is safe.
     */
    async cancel(object: string, key: string): Promise<Cancelled> {
        return await this.run(() => this.scheduler.cancel(object, key));
    }

    /** Makes a call, for whose end `close` waits. */
    private async run<T>(work: () => Promise<T>): Promise<T> {
        if (this.isClosed) {
            throw new Unconnected("its address", new Error("the emitter is closed"));
        }
        const run = work();
        this.underWay.add(run);
        try {
            return await run;
        } finally {
            this.underWay.delete(run);
        }
    }

    private async send(draft: Draft, once: Once | undefined): Promise<Emitted> {
        const limit = (await this.limits.known()).of(draft.object);
        if (once !== undefined) {
            return await this.limits.beside(this.sendOnce(draft, once, limit ?? {}));
        }
        if (limit !== undefined) {
            draft.checkFitsScript();
            return await this.limits.beside(this.sendScript(draft, undefined, limit));
        }
        return await this.limits.beside(this.sendPlain(draft));
    }

    private once({ idempotencyKey, window = WINDOW_MS, ...rest }: EmitOptions): Once | undefined {
        if ("keep" in rest && rest.keep !== undefined) {
            throw new TypeError("keep belongs to an awaited emit: give awaited: true, or a window");
        }
        if (idempotencyKey === undefined) {
            return undefined;
        }
        const windowMs = Math.ceil(
            Math.min(Math.max(positive("window", window), WINDOW_MIN_MS), WINDOW_MAX_MS),
        );
        return { key: checkKey(idempotencyKey), windowMs };
    }

    private awaitedOnce(draft: Draft, { idempotencyKey, keep, ...rest }: AwaitedOptions): Once {
        if ("window" in rest && rest.window !== undefined) {
            throw new TypeError("an awaited emit has no window; keep sets the time for its name and its end");
        }
        if (!draft.isSingle) {
            throw new NotAwaitable(draft.object);
        }
        const usual = idempotencyKey === undefined ? KEEP_MS : WINDOW_MS;
        const windowMs = Math.max(positive("keep", keep ?? usual), WINDOW_MIN_MS);
        return {
            key: checkAwaited(idempotencyKey ?? uniqueKey()),
            windowMs: Math.ceil(Math.min(windowMs, KEEP_MAX_MS)),
            inbox: this.waits.inbox,
        };
    }

    private async sendPlain(draft: Draft): Promise<Emitted> {
        try {
            const replies = await this.link.transact(draft.commands());
            const queued = draft.queued(replies.results);
            replies.check(draft.object);
            return { events: draft.events.length, queued, repeated: false };
        } catch (error) {
            throw about(draft.object, error);
        }
    }

    private async sendScript(draft: Draft, once: Once | undefined, limit: Limit): Promise<Emitted> {
        const { object, events } = draft;
        const { words, replies } = await callScript(
            this.link,
            EMIT,
            object,
            this.keys.markers,
            draft.scriptArgs(once, limit),
        );
        const { queued, repeated } = readEmit(object, once?.key ?? "", events.length, words);
        replies.check(object);
        if (repeated && this.link.waits) {
            await this.markAgain(object);
        }
        return { events: events.length, queued, repeated };
    }

    /**
     * Waits until replicas have an emit that was done before. A wait covers only the writes of its own connection,
     * and a repeated emit writes nothing. So this pushes a marker, which does no harm.
     */
    private async markAgain(object: string): Promise<void> {
        try {
            (await this.link.transact([["LPUSH", this.keys.markers, object]])).check(object);
        } catch (error) {
            throw about(object, error);
        }
    }

    /** Sends an emit with an idempotency key. If its outcome is unknown, sends it again, up to three times. */
    private async sendOnce(draft: Draft, once: Once, limit: Limit): Promise<Emitted> {
        const began = performance.now();
        let unknown: EmitError | undefined;
        for (let tries = 1, waitMs = TRY_AGAIN_MS; ; tries += 1, waitMs *= 2) {
            try {
                return await this.sendScript(draft, once, limit);
            } catch (error) {
                if (!(error instanceof EmitError) || error instanceof KeyReused) {
                    throw error;
                }
                // A try that was refused had no effect, but an earlier one may have had. So the unknown outcome counts.
                if (error.isUnknown || unknown === undefined) {
                    if (!error.isUnknown) {
                        throw error;
                    }
                    unknown = error;
                }
            }
            // A repeat is safe only as long as Redis keeps the key of the first try.
            if (tries >= TRIES || performance.now() - began > once.windowMs / 4) {
                throw unknown;
            }
            await new Promise((resolve) => setTimeout(resolve, waitMs));
        }
    }
}
