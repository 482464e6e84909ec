/** The cases that the packages of all languages share: `clients/cases/README.md` describes them. */
import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { join } from "node:path";
import type { Redis } from "ioredis";
import { type EventEnd, RawJson, type ScheduleOptions } from "seriatim";
import { CLIENTS } from "./support.js";

// biome-ignore lint/suspicious/noExplicitAny: the cases are JSON.
export type Json = any;

/** Returns the cases of a file. */
export function readCases(file: string): Json[] {
    return JSON.parse(readFileSync(join(CLIENTS, "cases", file), "utf8"));
}

/** Checks that an object has no members but these, and all that must be there. */
export function only(value: Json, what: string, must: readonly string[], may: readonly string[] = []): Json {
    for (const name of Object.keys(value)) {
        assert.ok(
            must.includes(name) || may.includes(name),
            `${what} has the member ${name}, which this runner does not know`,
        );
    }
    for (const name of must) {
        assert.ok(Object.hasOwn(value, name), `${what} has no member ${name}`);
    }
    return value;
}

/** Returns the only member of an object. */
export function single(value: Json, what: string): [name: string, value: Json] {
    const members = Object.entries(value);
    assert.equal(members.length, 1, `${what} has one member: ${JSON.stringify(value)}`);
    return members[0] as [string, Json];
}

/** Returns a text of an operation. */
export function text(value: Json): string {
    if (typeof value === "string" || value === undefined) {
        return value;
    }
    const [name, of] = single(value, "a text");
    if (name === "repeat") {
        return of[0].repeat(of[1]);
    }
    assert.equal(JSON.stringify(value), '{"special":"lone_surrogate"}');
    return "\ud800";
}

const SPECIAL: Record<string, unknown> = {
    nan: [Number.NaN],
    infinity: [Number.POSITIVE_INFINITY],
    minus_infinity: [Number.NEGATIVE_INFINITY],
    lone_surrogate: ["\ud800"],
    lone_surrogate_key: { "\ud800": 1 },
};

/** Returns the event that an `EVENT` stands for. */
export function event(value: Json): unknown {
    const [name, of] = single(value, "an event");
    switch (name) {
        case "value":
            return of;
        case "text":
            return new RawJson(text(of));
        case "hex":
            return new RawJson(Buffer.from(of, "hex"));
        case "long":
            return "x".repeat(of - 2);
        case "special":
            assert.ok(of in SPECIAL, `this runner does not know the special value ${of}`);
            return SPECIAL[of];
        default:
            assert.fail(`this runner does not know the event ${name}`);
    }
}

/** Returns the items of a list. A list may be written as an item and its number. */
export function list(values: Json): Json[] | undefined {
    if (values === undefined || Array.isArray(values)) {
        return values;
    }
    const [count, item] = only(values, "a list", ["times"]).times;
    return Array.from({ length: count }, () => item);
}

export function events(values: Json): unknown[] | undefined {
    return list(values)?.map(event);
}

/** Returns the options of a schedule. */
export function scheduleOptions(members: Json): ScheduleOptions {
    const { after_ms: after, at_ms: at, key, mode } = members;
    const keep = { keep_time: "time", keep_first: "first", replace: undefined }[mode as "keep_time"];
    assert.ok(mode === undefined || keep !== undefined || mode === "replace", `the mode ${mode}`);
    const time = typeof at === "object" ? Date.now() + only(at, "a time", ["now_plus_ms"]).now_plus_ms : at;
    return { after, at: time, key: text(key), keep: keep as ScheduleOptions["keep"] };
}

/** The time of Redis before and behind a case, in ms. */
export interface Span {
    readonly begin: number;
    readonly end: number;
}

export async function redisMs(redis: Redis): Promise<number> {
    const [seconds, micros] = (await redis.time()).map(Number);
    return (seconds ?? 0) * 1000 + (micros ?? 0) / 1000;
}

/** Compares a time, which may be about now and an offset. */
export function sameTime(found: unknown, wanted: Json, span: Span, what: string): void {
    if (typeof wanted !== "object") {
        assert.equal(found, wanted, what);
        return;
    }
    const now = Number(found) - only(wanted, "a time", ["now_plus_ms"]).now_plus_ms;
    assert.ok(
        now >= span.begin - 2 && now <= span.end + 2,
        `${what}: ${now} is not from ${span.begin} to ${span.end}`,
    );
}

/** Compares a text of a key, which may have the times and the inbox of awaited emits. */
export function sameText(found: string | null, wanted: string, span: Span, what: string): void {
    const escaped = wanted.replace(/[\\^$.*+?()[\]{}|]/g, "\\$&");
    const pattern = escaped
        .replaceAll("<us>", "([0-9]{16})")
        .replaceAll("<inbox>", "[0-9A-Za-z]{1,32} [0-9a-f]{40}");
    const match = new RegExp(`^${pattern}$`, "u").exec(found ?? "");
    assert.ok(match, `${what}: ${JSON.stringify(found)} is not ${JSON.stringify(wanted)}`);
    for (const micros of match.slice(1)) {
        sameTime(Number(micros) / 1000, { now_plus_ms: 0 }, span, what);
    }
}

/** Compares a score of a key. */
export function sameScore(found: number, wanted: Json, span: Span, what: string): void {
    if (wanted === "<queued>") {
        sameTime((-1e15 - found) / 1000, { now_plus_ms: 0 }, span, what);
    } else {
        sameTime(found, wanted, span, what);
    }
}

/** Compares the end of an awaited event. */
export function sameEnd(end: EventEnd, wanted: Json, what: string): void {
    for (const [name, value] of Object.entries(wanted)) {
        switch (name) {
            case "status":
            case "id":
            case "error":
            case "attempts":
            case "result":
            case "results":
                assert.deepEqual(end[name] ?? null, value, `${what} ${name}`);
                break;
            case "error_has":
                assert.ok(end.error?.includes(value as string), `${what}: ${end.error}`);
                break;
            case "result_bytes":
                assert.equal(Buffer.byteLength(JSON.stringify(end.result)), value, what);
                break;
            default:
                assert.fail(`this runner does not know the member ${name}`);
        }
    }
}

/** Runs the commands that come before a case. */
export async function given(redis: Redis, commands: Json[] = []): Promise<void> {
    for (const [name, ...args] of commands) {
        const words = args.map((arg: Json) =>
            typeof arg === "object" ? JSON.stringify(only(arg, "an argument", ["limits"]).limits) : arg,
        );
        await redis.call(name, words);
    }
}

/** Compares one key with the value that a case wants. */
export async function sameKey(redis: Redis, key: string, wanted: Json, span: Span): Promise<void> {
    const type = await redis.type(key);
    if (wanted === null) {
        assert.equal(type, "none", key);
        return;
    }
    const [kind, value] = single(wanted, key);
    switch (kind) {
        case "string":
            sameText(await redis.get(key), value, span, key);
            break;
        case "list":
            {
                const found = await redis.lrange(key, 0, -1);
                assert.equal(found.length, value.length, key);
                found.forEach((item, at) => {
                    sameText(item, value[at], span, key);
                });
            }
            break;
        case "list_length":
            assert.equal(await redis.llen(key), value, key);
            break;
        case "hash":
            assert.deepEqual({ ...(await redis.hgetall(key)) }, value, key);
            break;
        case "zset_of":
            assert.deepEqual(await redis.zrange(key, "0", "-1"), value, key);
            break;
        case "zset": {
            const found = await redis.zrange(key, "0", "-1", "WITHSCORES");
            const scores = new Map<string, string>();
            for (let at = 0; at < found.length; at += 2) {
                scores.set(found[at] as string, found[at + 1] as string);
            }
            assert.deepEqual([...scores.keys()].sort(), Object.keys(value).sort(), key);
            for (const [member, score] of Object.entries(value)) {
                sameScore(Number(scores.get(member) ?? Number.NaN), score, span, `${key} ${member}`);
            }
            break;
        }
        default:
            assert.fail(`this runner does not know the type ${kind}`);
    }
}

/** Puts texts in the places of other texts, in all texts of a value. */
export function replaceIn(value: Json, texts: ReadonlyMap<string, string>): Json {
    if (typeof value === "string") {
        return [...texts].reduce((all, [from, to]) => all.replaceAll(from, to), value);
    }
    if (Array.isArray(value)) {
        return value.map((one) => replaceIn(one, texts));
    }
    if (typeof value === "object" && value !== null) {
        return Object.fromEntries(
            Object.entries(value).map(([name, one]) => [replaceIn(name, texts), replaceIn(one, texts)]),
        );
    }
    return value;
}
