/** Runs `clients/cases/producers.json`. */
import assert from "node:assert/strict";
import { test } from "node:test";
import type { Redis } from "ioredis";
import {
    EmitError,
    EmitManyError,
    Emitter,
    Full,
    type Scheduled,
    type ScheduleItem,
    ScheduleManyError,
    WaitError,
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
    replaceIn,
    type Span,
    sameEnd,
    sameKey,
    sameScore,
    sameText,
    sameTime,
    scheduleOptions,
    single,
    text,
} from "./cases.js";
import { Server } from "./support.js";

/** An error as a result. */
function errorResult(error: unknown): Json {
    if (error instanceof WaitError) {
        return { error: error.kind, message: error.message };
    }
    if (!(error instanceof EmitError)) {
        throw error;
    }
    const { kind, message } = error;
    const detail = error instanceof Full ? error.detail : {};
    const many =
        error instanceof EmitManyError
            ? {
                  failed: error.failed.map((one) => ({ ...one, error: one.error.kind })),
                  stopped: error.stopped,
              }
            : {};
    const schedules =
        error instanceof ScheduleManyError
            ? { scheduled: error.scheduled.map(scheduled), next: error.error.kind }
            : {};
    return { ...error, ...detail, ...many, ...schedules, error: kind, message };
}

function scheduled({ key, dueMs, change }: Scheduled): Json {
    return { key, due_ms: dueMs, change };
}

function scheduleItem(of: Json): ScheduleItem {
    only(of, "a schedule", ["object", "event"], ["after_ms", "at_ms", "key", "mode"]);
    return [text(of.object), event(of.event), scheduleOptions(of)];
}

async function orError(work: () => Promise<Json>): Promise<Json> {
    try {
        return await work();
    } catch (error) {
        return errorResult(error);
    }
}

const PARTS = ["subevents", "data", "key", "window_ms", "awaited", "keep_ms"];

function parts(members: Json) {
    const { subevents, data, key, window_ms: window } = members;
    return {
        subevents: events(subevents),
        data: data === undefined ? undefined : event(data),
        idempotencyKey: text(key),
        window,
    };
}

async function emit(emitter: Emitter, of: Json): Promise<Json> {
    const [object, value] = [text(of.object), event(of.event)];
    if (!of.awaited) {
        return await emitter.emit(object, value, parts(of));
    }
    const options = { ...parts(of), awaited: true, keep: of.keep_ms } as const;
    const { events, queued, repeated, name } = await emitter.emit(object, value, options);
    return { events, queued, repeated, key: name };
}

async function operate(emitter: Emitter, redis: Redis, operation: Json): Promise<Json> {
    const [name, of] = single(operation, "an operation");
    switch (name) {
        case "emit":
            only(of, name, ["object", "event"], PARTS);
            return await emit(emitter, of);
        case "end_of":
            only(of, name, ["object", "name", "within_ms"]);
            return { end: await emitter.endOf(text(of.object), text(of.name), of.within_ms) };
        case "emit_many":
            only(of, name, ["events"]);
            return await emitter.emitMany(
                (list(of.events) ?? []).map(([object, one]: Json) => [text(object), event(one)]),
            );
        case "schedule":
            return scheduled(await emitter.schedule(...scheduleItem(of)));
        case "schedule_many": {
            const { schedules } = only(of, name, ["schedules"]);
            return { scheduled: (await emitter.scheduleMany(schedules.map(scheduleItem))).map(scheduled) };
        }
        case "cancel":
            only(of, name, ["object", "key"]);
            return { cancelled: await emitter.cancel(text(of.object), text(of.key)) };
        case "transaction":
            return { outcomes: await transaction(emitter, redis, only(of, name, ["steps"]).steps) };
        case "redis":
            await redis.call(of.command[0], of.command.slice(1));
            return {};
        default:
            assert.fail(`this runner does not know the operation ${name}`);
    }
}

async function transaction(emitter: Emitter, redis: Redis, steps: Json[]): Promise<Json[]> {
    const multi = redis.multi();
    const placed: Json[] = [];
    for (const step of steps) {
        const [name, of] = single(step, "a step");
        if (name === "command") {
            multi.call(of[0], of.slice(1));
            continue;
        }
        assert.equal(name, "emit");
        only(of, "an emit", ["object", "event"], ["subevents", "data"]);
        const { subevents, data } = parts(of);
        try {
            placed.push(emitter.appendTo(multi, text(of.object), event(of.event), { subevents, data }));
        } catch (error) {
            placed.push(errorResult(error));
        }
    }
    const reply = await multi.exec().then(
        (reply) => ({ reply }),
        (error: unknown) => ({ error }),
    );
    return placed.map((one) => {
        if (typeof one.outcome !== "function") {
            return one;
        }
        try {
            if ("error" in reply) {
                throw one.failure(reply.error);
            }
            one.outcome(reply.reply);
            return "ok";
        } catch (error) {
            return errorResult(error);
        }
    });
}

const RESULT = [
    "events",
    "queued",
    "repeated",
    "chunks",
    "key",
    "due_ms",
    "change",
    "scheduled",
    "cancelled",
    "outcomes",
    "end",
];
const ERROR = [
    "error",
    "message",
    "message_has",
    "bytes",
    "what",
    "limit",
    "markers",
    "acknowledged",
    "stopped",
    "failed",
    "first",
    "object",
    "next",
    "reached",
    "wanted",
];

/** Compares the members that are wanted. */
function same(found: Json, wanted: Json, span: Span, what: string): void {
    if (typeof wanted !== "object" || wanted === null) {
        assert.deepEqual(found, wanted, what);
        return;
    }
    for (const [name, value] of Object.entries(wanted) as [string, Json][]) {
        assert.ok(
            RESULT.includes(name) || ERROR.includes(name),
            `this runner does not know the member ${name}`,
        );
        const where = `${what} ${name}, found ${JSON.stringify(found)}`;
        if (name === "message_has") {
            assert.ok(String(found.message).includes(value), where);
        } else if (name === "end") {
            assert.ok("end" in found, where);
            sameEnd(found.end, value, where);
        } else if (name === "due_ms") {
            sameTime(found.due_ms, value, span, where);
        } else if (Array.isArray(value)) {
            assert.equal(found[name]?.length, value.length, where);
            value.forEach((one, at) => {
                same(found[name][at], one, span, where);
            });
        } else {
            assert.deepEqual(found[name], value, where);
        }
    }
    assert.equal("error" in found, "error" in wanted, `${what}, found ${JSON.stringify(found)}`);
}

test("producers.json", async (t) => {
    const server = await Server.start(t);
    const redis = server.client(t);
    const cases = readCases("producers.json");
    assert.ok(cases.length >= 150);
    assert.equal(new Set(cases.map(({ name }) => name)).size, cases.length, "names are unique");
    for (const one of cases) {
        await t.test(one.name, async () => {
            only(one, "the case", ["name", "do", "then", "keys"], ["namespace", "emitter", "given"]);
            await redis.flushall();
            await redis.script("FLUSH");
            await given(redis, one.given);
            const settings = only(
                one.emitter ?? {},
                "emitter",
                [],
                ["event_bytes_max", "chunk_events_max", "chunk_bytes_max", "wait", "wait_timeout_ms"],
            );
            const emitter = new Emitter(server.url, {
                namespace: one.namespace,
                eventBytesMax: settings.event_bytes_max,
                chunkEventsMax: settings.chunk_events_max,
                chunkBytesMax: settings.chunk_bytes_max,
                wait: settings.wait,
                waitTimeout: settings.wait_timeout_ms,
            });
            try {
                const made = new Map<string, string>();
                const results: Json[] = [];
                const begin = await redisMs(redis);
                for (const operation of one.do) {
                    const result = await orError(() => operate(emitter, redis, replaceIn(operation, made)));
                    made.set(`<key of ${results.length}>`, result.key);
                    list(result.scheduled)?.forEach(({ key }: Json, at) => {
                        made.set(`<key of ${results.length}.${at}>`, key);
                    });
                    results.push(result);
                }
                const span = { begin, end: await redisMs(redis) };
                const known = new Map([...made].filter(([, key]) => key?.startsWith("-")));
                const then = replaceIn(one.then, known);
                assert.equal(results.length, then.length);
                results.forEach((result, at) => {
                    same(result, then[at], span, `operation ${at}`);
                });
                const keys = replaceIn(one.keys, known);
                assert.deepEqual((await redis.keys("*")).sort(), Object.keys(keys).sort());
                for (const [key, wanted] of Object.entries(keys)) {
                    await sameKey(redis, key, wanted, span);
                }
            } finally {
                await emitter.close();
            }
        });
    }
});

test("the markers of awaited emits are compared", () => {
    const span = { begin: 1_795_977_000_000, end: 1_795_977_000_005 };
    const [micros, late] = [span.begin * 1000 + 3000, span.end * 1000 + 3000];
    sameText(`\0queued ${micros} ?60 k`, "\0queued <us> ?60 k", span, "a");
    sameText(`?0aZ ${"0f".repeat(20)}`, "?<inbox>", span, "a");
    sameScore(-1e15 - micros, "<queued>", span, "a");
    for (const [found, wanted] of [
        [`\0queued ${late} ?60 k`, "\0queued <us> ?60 k"],
        ["\0queued 1 k", "\0queued <us> k"],
        ["?", "?<inbox>"],
        ["?a b", "?<inbox>"],
        ["x", "."],
    ] as const) {
        assert.throws(() => sameText(found, wanted, span, "a"), assert.AssertionError);
    }
    for (const score of [-1e15 - late, micros]) {
        assert.throws(() => sameScore(score, "<queued>", span, "a"), assert.AssertionError);
    }
});
