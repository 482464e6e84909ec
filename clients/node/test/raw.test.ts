import assert from "node:assert/strict";
import { test } from "node:test";
import { rawEvents } from "../dist/worker/raw.js";

/** A random number generator whose seed a failure shows. */
function random(seed: number): (below: number) => number {
    let state = seed;
    return (below) => {
        state = (Math.imul(state, 1_664_525) + 1_013_904_223) >>> 0;
        return Math.floor((state / 2 ** 32) * below);
    };
}

const TEXTS = [
    "",
    "a",
    '"',
    "\\",
    '\\"',
    "}",
    "]",
    "{[",
    ",",
    ":",
    "event",
    "events",
    "é\u2028",
    "\\\\",
    "😀",
];
const NUMBERS = ["0", "-0", "9007199254740993", "1.50", "1e400", "123456789012345678901234567890"];

/** Returns the text of a random JSON value, with blanks between its parts. */
function value(r: (below: number) => number, depth: number): string {
    const blank = () => ["", " ", "\t", "  "][r(4)];
    switch (r(depth > 0 ? 6 : 4)) {
        case 0:
            return NUMBERS[r(NUMBERS.length)] ?? "0";
        case 1:
            return ["true", "false", "null"][r(3)] ?? "null";
        case 2:
        case 3:
            return text(r);
        case 4: {
            const items = Array.from({ length: r(4) }, () => `${blank()}${value(r, depth - 1)}${blank()}`);
            return `[${items.length === 0 ? blank() : items.join(",")}]`;
        }
        default: {
            const members = Array.from(
                { length: r(4) },
                () => `${blank()}${text(r)}${blank()}:${blank()}${value(r, depth - 1)}${blank()}`,
            );
            return `{${members.length === 0 ? blank() : members.join(",")}}`;
        }
    }
}

function text(r: (below: number) => number): string {
    const plain = JSON.stringify(TEXTS[r(TEXTS.length)]);
    return r(3) === 0 ? plain.replace("e", "\\u0065") : plain;
}

test("the texts of events are taken out of any line, byte for byte", () => {
    for (let seed = 1; seed <= 3000; seed += 1) {
        const r = random(seed);
        const events = Array.from({ length: 1 + r(4) }, () => value(r, 3));
        const blank = () => ["", " ", "\t "][r(3)];
        // The worker may write members in any order, and members that this version does not know.
        const envelopes = events.map((event) => {
            const members = [
                `"id":1`,
                `"event"${blank()}:${blank()}${event}${blank()}`,
                `"other":${value(r, 2)}`,
            ];
            if (r(2) === 0) {
                members.reverse();
            }
            return `{${members.join(",")}}`;
        });
        const members = [
            `"type":"batch"`,
            `"once":${value(r, 2)}`,
            `"events":${blank()}[${blank()}${envelopes.join(` ,${blank()}`)}]`,
        ];
        if (r(2) === 0) {
            members.reverse();
        }
        const line = `${blank()}{${members.join(",")}}${blank()}`;
        assert.doesNotThrow(() => JSON.parse(line), `seed ${seed} makes JSON`);
        assert.deepEqual(rawEvents(line), events, `seed ${seed}: ${line}`);
    }
});

test("of two members with one name, the last counts, as for JSON.parse", () => {
    const line = '{"events":[{"event":1}],"\\u0065vents":[{"event":2,"event":{"a":"]}"}},{"id":1}]}';
    assert.deepEqual(rawEvents(line), ['{"a":"]}"}', "null"]);
});

test("a long text with many backslashes takes no quadratic time", () => {
    const event = JSON.stringify("\\".repeat(500_000));
    const began = performance.now();
    assert.deepEqual(rawEvents(`{"events":[{"event":${event}}]}`), [event]);
    assert.ok(performance.now() - began < 2000);
});
