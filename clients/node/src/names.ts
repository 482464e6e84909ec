/** The names of objects, keys of schedules, and namespaces, and the keys in Redis that are made of them. */
import { randomBytes } from "node:crypto";
import { InvalidKey, InvalidName } from "./errors.js";
import { escapeName, quoted } from "./escape.js";

const NAME_BYTES_MAX = 512;
const KEY_BYTES_MAX = 256;
/** The event `NAME` has the key `?SECONDS NAME`, with at most 604,800 seconds. */
const AWAITED_BYTES_MAX = KEY_BYTES_MAX - "?604800 ".length;
const NAMESPACE = /^[A-Za-z0-9_.-]{1,64}$/;
const CONTROL = /[\u0000-\u001f\u007f-\u009f]/;

/** Returns the reason why a text is no name; none if it is one. */
function defect(text: unknown, what: string, bytesMax: number): string | undefined {
    if (typeof text !== "string") {
        return `${what} is a string, this one is ${text === null ? "null" : `of type ${typeof text}`}`;
    }
    if (text === "") {
        return `${what} must not be empty`;
    }
    if (!text.isWellFormed()) {
        // With the flag u, this matches only a surrogate without its other half.
        const at = text.search(/[\ud800-\udfff]/u);
        return `${what} is UTF-8, this one is invalid at byte ${Buffer.byteLength(text.slice(0, at))}`;
    }
    const bytes = Buffer.byteLength(text);
    if (bytes > bytesMax) {
        return `${what} has at most ${bytesMax} bytes, this one has ${bytes}`;
    }
    const control = CONTROL.exec(text);
    if (control) {
        const code = control[0].charCodeAt(0).toString(16).toUpperCase().padStart(4, "0");
        const at = Buffer.byteLength(text.slice(0, control.index));
        return `${what} has no control characters, this one has U+${code} at byte ${at}`;
    }
    return undefined;
}

/** Checks the key of a schedule, or an idempotency key. */
export function checkKey(key: string): string {
    const why = defect(key, "a key", KEY_BYTES_MAX);
    if (why !== undefined) {
        throw new InvalidKey(why);
    }
    return key;
}

/** Checks the name of an awaited event. The event is queued under a longer key. */
export function checkAwaited(name: string): string {
    const why = defect(name, "the name of an awaited event", AWAITED_BYTES_MAX);
    if (why !== undefined) {
        throw new InvalidKey(why);
    }
    return name;
}

const RANDOM = randomBytes(8).toString("hex");
const STARTED = String(Date.now()).padStart(13, "0");
let made = 0;

/** Returns a new key that no other schedule or awaited event has. A later key of this process is greater in the order of bytes. */
export function uniqueKey(): string {
    const count = String(made++).padStart(12, "0");
    return `-${STARTED}-${count}-${RANDOM}`;
}

/** Returns whether a user has chosen the key. Otherwise an emitter has made it. */
export function isChosen(key: string): boolean {
    return !key.startsWith("-");
}

/** The keys in Redis of one namespace. */
export class Keys {
    /** The prefix of every key: empty, or `{NS:0}:`. */
    readonly prefix: string;

    constructor(namespace?: string) {
        if (namespace !== undefined && !(typeof namespace === "string" && NAMESPACE.test(namespace))) {
            throw new TypeError(
                `the namespace ${quoted(String(namespace))} is invalid: a namespace has 1 to 64 of the characters A-Z a-z 0-9 _ . -`,
            );
        }
        this.prefix = namespace === undefined ? "" : `{${namespace}:0}:`;
    }

    /** Checks the name of an object. */
    object(name: string): string {
        const why = defect(name, "an object name", NAME_BYTES_MAX);
        if (why !== undefined) {
            throw new InvalidName(why);
        }
        if (this.prefix === "" && name.startsWith("{")) {
            throw new InvalidName(
                `without a namespace, an object name must not begin with '{': ${quoted(escapeName(name))}; choose another name or use a namespace`,
            );
        }
        return name;
    }

    events(object: string): string {
        return `${this.prefix}${object}:events`;
    }

    data(object: string): string {
        return `${this.prefix}${object}:data`;
    }

    /** The hash of the object's schedules. */
    scheduledOf(object: string): string {
        return `${this.prefix}${object}:events.scheduled`;
    }

    /** The key of the event that a worker has taken, with the event's id. */
    taken(object: string): string {
        return `${this.prefix}${object}:event.key`;
    }

    /** The end of an awaited event. */
    eventEnd(object: string, name: string): string {
        return `${this.prefix}${object}\n${name}:event.end`;
    }

    /** The ends that were written for an inbox. */
    eventEnds(inbox: string): string {
        return `${this.prefix}\n${inbox}:event.ends`;
    }

    get markers(): string {
        return `${this.prefix}objects.with.events`;
    }

    get scheduled(): string {
        return `${this.prefix}events.scheduled`;
    }

    get wake(): string {
        return `${this.prefix}events.scheduled.wake`;
    }

    get limits(): string {
        return `${this.prefix}event.limits`;
    }

    get held(): string {
        return `${this.prefix}objects.held`;
    }
}
