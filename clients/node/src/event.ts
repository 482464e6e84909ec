/** Events: from values of JavaScript, or texts that are JSON already, to the bytes that are queued. */
import { describe, InvalidEvent } from "./errors.js";

/** The largest event, in bytes: 1 MiB. */
export const EVENT_BYTES_MAX = 1024 * 1024;

const UTF8 = new TextDecoder("utf-8", { fatal: true, ignoreBOM: true });

/**
 * A text that is JSON already. It is checked when it is emitted, and is queued byte for byte. Use it for numbers
 * that a JavaScript number cannot hold.
 */
export class RawJson {
    /** The text. It is `undefined` if the bytes are not UTF-8. */
    readonly text: string | undefined;

    constructor(text: string | Uint8Array) {
        this.text = typeof text === "string" ? text : decoded(text);
    }

    /** @throws always: a raw text is a whole event, and never a part of a value. */
    toJSON(): never {
        throw new TypeError("a RawJson is a whole event; it cannot be a part of a value");
    }
}

function decoded(bytes: Uint8Array): string | undefined {
    try {
        return UTF8.decode(bytes);
    } catch {
        return undefined;
    }
}

/** Makes the JSON of a value. Refuses values that JSON cannot hold. `refuse` makes the error. */
export function toJson(
    value: unknown,
    bytesMax = EVENT_BYTES_MAX,
    refuse: (why: Defect) => Error = (why) => new InvalidEvent(why.text("event")),
): string {
    const checkSize = (json: string): string => {
        const bytes = Buffer.byteLength(json);
        if (bytes > bytesMax) {
            throw refuse(new Defect("has", `${bytes} bytes, the limit is ${bytesMax}`, bytes));
        }
        return json;
    };
    if (value instanceof RawJson) {
        const { text } = value;
        if (text === undefined || !text.isWellFormed()) {
            throw refuse(new Defect("is not JSON:", "it is not UTF-8"));
        }
        checkSize(text);
        try {
            JSON.parse(text);
        } catch (error) {
            throw refuse(new Defect("is not JSON:", describe(error)));
        }
        return text;
    }
    let json: string | undefined;
    try {
        json = JSON.stringify(value);
        // `JSON.stringify` writes null, {} and escapes for values that JSON does not have. So only such texts are
        // looked at again.
        if (json !== undefined && /null|\{\}|\\ud/.test(json)) {
            JSON.stringify(value, checkMember);
        }
    } catch (error) {
        throw refuse(new Defect("cannot be written as JSON:", describe(error)));
    }
    if (json === undefined) {
        throw refuse(
            new Defect(
                "cannot be written as JSON:",
                `it is ${value === undefined ? "undefined" : `a ${typeof value}`}`,
            ),
        );
    }
    return checkSize(json);
}

/** The reason why a value is refused. */
export class Defect {
    constructor(
        readonly verb: string,
        readonly detail: string,
        /** The size, if the value is too large. */
        readonly bytes?: number,
    ) {}

    /** Returns a sentence about the value. `what`: the word for the value. */
    text(what: string): string {
        return `the ${what} ${this.verb} ${this.detail}`;
    }
}

const OPAQUE = [Map, Set, WeakMap, WeakSet, Promise, RegExp, Error, ArrayBuffer];

/** Checks a member of a value. `JSON.stringify` calls this function for each member, also for the whole value. */
function checkMember(this: unknown, key: string, value: unknown): unknown {
    const refused = (why: string): never => {
        throw new TypeError(key === "" ? `it is ${why}` : `its member ${JSON.stringify(key)} is ${why}`);
    };
    if (!key.isWellFormed()) {
        throw new TypeError("the name of a member has a surrogate without its other half");
    }
    if (typeof value === "number" && !Number.isFinite(value)) {
        refused(String(value));
    }
    if (typeof value === "string" && !value.isWellFormed()) {
        refused("a text with a surrogate without its other half");
    }
    if (value === null && (this as Record<string, unknown>)[key] instanceof Date) {
        refused("a Date without a time");
    }
    if (typeof value === "object" && OPAQUE.some((type) => value instanceof type)) {
        refused(`a ${value?.constructor.name}, which JSON does not have`);
    }
    return value;
}
