/** The progress and the log lines of a handler. They are advice for people, and end with the run of the handler. */
import { cut } from "../escape.js";
import { toJson } from "../event.js";

/** The largest progress, in bytes of JSON. */
const PROGRESS_BYTES_MAX = 1024;
/** The longest text of a log line, in bytes. */
const LOG_BYTES_MAX = 1000;
/** The longest text of a log line as JSON. So such a line has less than 4 KiB. */
const LOG_JSON_BYTES_MAX = 3900;
/** The most log lines of an event that wait to be written. */
const LINES_MAX = 100;

/** The progress of a handler is no JSON, or too large. */
export class InvalidProgress extends Error {
    override readonly name = "InvalidProgress";
    readonly kind = "progress";
}

/**
 * Returns the JSON of a progress.
 *
 * @throws {InvalidProgress}
 */
export function progressJson(value: unknown): string {
    const json = toJson(
        value,
        PROGRESS_BYTES_MAX,
        (why) => new InvalidProgress(`${why.text("progress")}; report a number or a short text`),
    );
    return json.replace(/[\r\n]/g, " ");
}

/** Returns as much of a text as a line of the log has. */
export function logText(text: string): string {
    if (typeof text !== "string") {
        throw new TypeError(`log() takes a string, not ${text === null ? "null" : typeof text}`);
    }
    const kept = cut(text, LOG_BYTES_MAX);
    // JSON has six bytes for each control character.
    const isShort = Buffer.byteLength(JSON.stringify(kept)) <= LOG_JSON_BYTES_MAX;
    return isShort ? kept : cut(kept, Math.floor(LOG_JSON_BYTES_MAX / 6));
}

/** The reports of an event that wait to be written: the newest progress, and the newest log lines. */
export class Waiting {
    private json: string | undefined = undefined;
    private readonly texts: string[] = [];
    private dropped = 0;

    constructor(
        private readonly batch: number,
        private readonly id: number,
    ) {}

    progress(json: string): void {
        this.json = json;
    }

    log(text: string): void {
        this.texts.push(text);
        if (this.texts.length > LINES_MAX) {
            this.texts.shift();
            this.dropped += 1;
        }
    }

    /** Returns the lines for the worker, each with its end. */
    lines(): string {
        const { batch, id, json, dropped } = this;
        const log = (text: string) => `${JSON.stringify({ type: "log", batch, id, text })}\n`;
        const first =
            dropped === 0
                ? ""
                : log(
                      `${dropped} lines before this one were dropped: the handler logs faster than the worker reads`,
                  );
        const last =
            json === undefined ? "" : `{"type":"progress","batch":${batch},"id":${id},"value":${json}}\n`;
        return first + this.texts.map(log).join("") + last;
    }
}
