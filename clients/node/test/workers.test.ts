/** Runs `clients/cases/workers.json`. */
import assert from "node:assert/strict";
import { test } from "node:test";
import type { Redis } from "ioredis";
import {
    Emitter,
    type EventEnd,
    type HandlerContext,
    Postponed,
    Rejected,
    Transient,
    Unavailable,
    Unknown,
    WaitError,
    Worker,
} from "seriatim";
import {
    event,
    events,
    given,
    type Json,
    list,
    only,
    readCases,
    redisMs,
    sameEnd,
    sameKey,
    scheduleOptions,
    single,
    text,
} from "./cases.js";
import { Server, seriatim, until } from "./support.js";

const SCHEDULE = ["after_ms", "at_ms", "key", "mode"];

/** Returns a list whose elements may stand for many. */
function expanded(values: Json[]): Json[] {
    return values.flatMap((one) =>
        Array.isArray(one?.times) && Object.keys(one).length === 1 ? (list(one) ?? []) : [one],
    );
}

/** The handlers of a case, and what they have recorded. */
class Play {
    readonly calls: Record<string, string[]> = {};
    /** Expectations that did not hold. */
    readonly wrong: unknown[] = [];
    private readonly running = new Set<string>();
    /** The contexts of the handlers in hand and of those before them, by object. */
    private readonly contexts = new Map<string, HandlerContext>();
    private readonly ended = new Map<string, HandlerContext | undefined>();
    private readonly runs = new Map<string, number>();

    constructor(
        private readonly scripts: Json,
        worker: Worker,
    ) {
        for (const type of Object.keys(scripts)) {
            const handler = (value: unknown, cx: HandlerContext) => this.handle(type, value, cx);
            if (type === "*") {
                worker.onOther<unknown>(handler);
            } else {
                worker.on<unknown>(type, handler);
            }
        }
    }

    private async handle(type: string, value: unknown, cx: HandlerContext): Promise<void> {
        this.hold(() => assert.ok(!this.running.has(cx.object), `two handlers of ${cx.object} run at once`));
        this.running.add(cx.object);
        this.ended.set(cx.object, this.contexts.get(cx.object));
        this.contexts.set(cx.object, cx);
        const line = `${type} ${cx.attempt}`;
        const calls = this.calls[cx.object] ?? [];
        this.calls[cx.object] = calls;
        calls.push(line);
        const scripts = this.scripts[type];
        const script: Json[] = scripts[Math.min(cx.attempt, scripts.length) - 1];
        const place = `${cx.object}\n${cx.id}`;
        const run = (this.runs.get(place) ?? 0) + 1;
        this.runs.set(place, run);
        try {
            // Another handler gets a chance to run at the same time.
            await new Promise((resolve) => setImmediate(resolve));
            for (const action of expanded(script)) {
                await this.act(action, { value, cx, line, calls, run });
            }
        } finally {
            this.running.delete(cx.object);
        }
    }

    private hold(check: () => void): void {
        try {
            check();
        } catch (error) {
            this.wrong.push(error);
        }
    }

    private async act(
        action: Json,
        on: { value: unknown; cx: HandlerContext; line: string; calls: string[]; run: number },
    ): Promise<void> {
        const { cx, line, calls } = on;
        const [name, of] = single(action, "an action");
        const fails = () => of.times === undefined || on.run <= of.times;
        switch (name) {
            case "emit":
            case "schedule":
            case "cancel":
            case "result":
            case "progress":
            case "log":
                this.effect(cx, name, of);
                break;
            case "refused":
                this.refused(cx, of);
                break;
            case "late":
                this.refused(this.ended.get(cx.object) as HandlerContext, of);
                break;
            case "once": {
                only(of, name, ["name"], ["value", "long", "returns"]);
                const value = "long" in of ? event({ long: of.long }) : of.value;
                const found = await cx.once(text(of.name), async () => {
                    calls.push(`${line} once ${of.name}`);
                    return value;
                });
                this.hold(() => assert.deepEqual(found, "returns" in of ? of.returns : value));
                break;
            }
            case "fails_once":
                only(of, name, ["name", "error"]);
                await cx.once(of.name, () => {
                    calls.push(`${line} once ${of.name}`);
                    throw new Error(of.error);
                });
                break;
            case "expect":
                this.hold(() => this.expect(cx, on.value, of));
                break;
            case "transient":
                only(of, name, ["error"], ["retry_after_ms", "times"]);
                if (fails()) {
                    throw new Transient(text(of.error), { retryAfter: of.retry_after_ms });
                }
                break;
            case "rejected":
            case "unknown":
            case "unavailable": {
                only(of, name, ["error"], ["times"]);
                const type = { rejected: Rejected, unknown: Unknown, unavailable: Unavailable }[name];
                if (fails()) {
                    throw new type(text(of.error));
                }
                break;
            }
            case "postponed":
                only(of, name, ["error", "after_ms"], ["times"]);
                if (fails()) {
                    throw new Postponed(of.after_ms, text(of.error));
                }
                break;
            case "throw":
                throw new Error(text(of));
            default:
                this.wrong.push(new Error(`this runner does not know the action ${name}`));
        }
    }

    private refused(cx: HandlerContext, of: Json): void {
        const { error, ...rest } = of;
        const [effect, members] = single(rest, "refused");
        this.hold(() =>
            assert.throws(
                () => this.effect(cx, effect, members),
                (thrown: Json) => thrown.kind === error,
                `${effect} is refused with ${error}`,
            ),
        );
    }

    private effect(cx: HandlerContext, name: string, of: Json): void {
        switch (name) {
            case "emit":
                only(of, name, ["object", "event"]);
                cx.emit(text(of.object), event(of.event));
                break;
            case "schedule":
                only(of, name, ["object", "event"], SCHEDULE);
                cx.schedule(text(of.object), event(of.event), scheduleOptions(of));
                break;
            case "cancel":
                only(of, name, ["object", "key"]);
                cx.cancel(text(of.object), text(of.key));
                break;
            case "result":
                cx.result(event(of));
                break;
            case "progress":
                cx.progress(event(of));
                break;
            case "log":
                cx.log(text(of));
                break;
            default:
                this.wrong.push(new Error(`this runner does not know the effect ${name}`));
        }
    }

    private expect(cx: HandlerContext, value: unknown, of: Json): void {
        const found: Json = {
            object: cx.object,
            type: cx.type ?? null,
            attempt: cx.attempt,
            crashes: cx.crashes,
            traceparent: cx.traceparent ?? null,
            payload: cx.raw,
            event: value,
            has_prev: cx.prev > 0,
            has_token: cx.token !== "",
        };
        for (const [name, wanted] of Object.entries(of)) {
            assert.ok(name in found, `this runner does not know the member ${name}`);
            assert.deepEqual(found[name], wanted, name);
        }
    }
}

async function emit(emitter: Emitter, of: Json): Promise<void> {
    const more = [...SCHEDULE, "subevents", "data", "window_ms", "awaited", "keep_ms"];
    only(of, "an emit", ["object", "event"], more);
    const [object, value] = [text(of.object), event(of.event)];
    if ("after_ms" in of || "at_ms" in of) {
        await emitter.schedule(object, value, scheduleOptions(of));
        return;
    }
    const [data, idempotencyKey] = [of.data === undefined ? undefined : event(of.data), text(of.key)];
    if (of.awaited) {
        await emitter.emit(object, value, { awaited: true, idempotencyKey, keep: of.keep_ms });
    } else {
        await emitter.emit(object, value, { subevents: events(of.subevents), data, idempotencyKey });
    }
}

/** Compares the ends of awaited events. */
async function sameEnds(emitter: Emitter, ends: Json[]): Promise<void> {
    for (const one of ends) {
        const {
            object,
            name,
            within_ms: ms,
        } = only(one, "an end", ["object", "name"], ["end", "error", "within_ms"]);
        const end = await emitter.endOf(object, name, ms).catch((error: unknown) => error);
        if (end instanceof WaitError) {
            assert.equal(end.kind, one.error, String(end));
        } else {
            assert.equal(one.error, undefined, JSON.stringify(end));
            sameEnd(end as EventEnd, one.end, `the end ${name} of ${object}`);
        }
    }
}

/** Returns the rows of the event log. */
async function rowsOf(redis: Redis, prefix: string): Promise<Json[]> {
    const entries = await redis.xrange(`${prefix}event.log`, "-", "+");
    return entries.map(([, fields]) => {
        const row: Json = {};
        for (let at = 0; at < fields.length; at += 2) {
            row[fields[at] as string] = fields[at + 1];
        }
        return row;
    });
}

function sameRow(row: Json, wanted: Json, what: string): void {
    const results = row.results === undefined ? [] : Object.values(JSON.parse(row.results));
    for (const [name, value] of Object.entries(wanted) as [string, Json][]) {
        switch (name) {
            case "status":
            case "error":
                assert.equal(row[name], value, what);
                break;
            case "event":
                assert.deepEqual(JSON.parse(row.event), value, what);
                break;
            case "attempts":
                assert.equal(Number(row.attempts), value, what);
                break;
            case "error_has":
                assert.ok(row.error.includes(value), `${what}: ${row.error}`);
                break;
            case "result":
                assert.deepEqual(results, [value], what);
                break;
            case "result_bytes":
                assert.equal(Buffer.byteLength(JSON.stringify(results[0])), value, what);
                break;
            case "no_result":
                assert.equal(row.results, undefined, what);
                break;
            default:
                assert.fail(`this runner does not know the member ${name}`);
        }
    }
}

test("workers.json", async (t) => {
    const program = seriatim();
    const server = await Server.start(t);
    const redis = server.client(t);
    const cases = readCases("workers.json");
    assert.ok(cases.length >= 55);
    for (const one of cases) {
        await t.test(one.name, async () => {
            only(one, "the case", ["name", "emit", "handlers", "then"], ["namespace", "worker", "given"]);
            only(one.then, "then", ["calls", "log"], ["held", "keys", "ends"]);
            await redis.flushall();
            await given(redis, one.given);
            const { namespace } = one;
            const prefix = namespace === undefined ? "" : `{${namespace}:0}:`;
            const begin = await redisMs(redis);
            const emitter = new Emitter(server.url, { namespace });
            for (const of of one.emit) {
                await emit(emitter, of);
            }
            await emitter.close();
            const worker = new Worker(server.url, {
                name: "cases",
                namespace,
                program,
                concurrency: 4,
                batch: 16,
                eventLog: true,
                args: ["--log", "error", ...(one.worker ?? [])],
                log: () => undefined,
            });
            const play = new Play(one.handlers, worker);
            const log = Object.entries(one.then.log).map(
                ([object, rows]) => [object, expanded(rows as Json[])] as const,
            );
            const held = Object.entries(one.then.held ?? {}) as [string, string][];
            const wanted = log.reduce((sum, [, rows]) => sum + rows.length, 0);
            const running = worker.run();
            try {
                const isThere = async () =>
                    (await redis.xlen(`${prefix}event.log`)) >= wanted &&
                    (await redis.zcard(`${prefix}objects.held`)) >= held.length;
                await Promise.race([
                    until(isThere, `${wanted} rows and ${held.length} held objects`),
                    running,
                ]);
            } finally {
                worker.stop();
                await running;
            }
            const span = { begin, end: await redisMs(redis) };
            assert.deepEqual(play.wrong, []);
            const calls = Object.entries(one.then.calls).map(([object, lines]) => [
                object,
                expanded(lines as Json[]),
            ]);
            assert.deepEqual(play.calls, Object.fromEntries(calls));
            const rows: Json = {};
            for (const row of await rowsOf(redis, prefix)) {
                rows[row.object] = [...(rows[row.object] ?? []), row];
            }
            assert.deepEqual(Object.keys(rows).sort(), log.map(([object]) => object).sort());
            for (const [object, wantedRows] of log) {
                assert.equal(rows[object].length, wantedRows.length, `the rows of ${object}`);
                let last = "0";
                rows[object].forEach((row: Json, at: number) => {
                    sameRow(row, wantedRows[at], `row ${at} of ${object}`);
                    assert.equal(row.prev, last, `prev of row ${at} of ${object}`);
                    last = row.status === "completed" ? row.id : last;
                });
            }
            await using reader = new Emitter(server.url, { namespace });
            await sameEnds(reader, one.then.ends ?? []);
            for (const [object, why] of held) {
                const reason = await redis.get(`${prefix}${object}:events.held.id`);
                assert.ok(reason?.includes(why), `${object} is held: ${reason}`);
            }
            for (const [key, value] of Object.entries(one.then.keys ?? {})) {
                await sameKey(redis, key, value, span);
            }
        });
    }
});
