/**
 * Escapes names for people. An escaped name has no line ends, no control sequences of a terminal, and no
 * invisible characters.
 */

const ESCAPED =
    /[\\\u0000-\u001f\u007f-\u009f\u00ad\u061c\u180e\u200b-\u200f\u2028-\u202e\u2060-\u2064\u2066-\u206f\ufeff\u{e0000}-\u{e007f}]/gu;

const SHORT: Record<string, string> = { "\\": "\\\\", "\n": "\\n", "\r": "\\r", "\t": "\\t" };

/** Returns the name as the commands of `seriatim` print and take it. */
export function escapeName(name: string): string {
    return name
        .toWellFormed()
        .replace(ESCAPED, (c) => SHORT[c] ?? `\\u{${(c.codePointAt(0) ?? 0).toString(16)}}`);
}

/** Returns the text in quotes, with the escapes that a string literal has. */
export function quoted(text: string): string {
    return JSON.stringify(text);
}

/** Returns at most `bytesMax` bytes of a text, cut between characters. The result is always UTF-8. */
export function cut(text: string, bytesMax: number): string {
    const whole = text.toWellFormed();
    if (Buffer.byteLength(whole) <= bytesMax) {
        return whole;
    }
    const bytes = Buffer.from(whole.slice(0, bytesMax));
    let end = Math.min(bytesMax, bytes.length);
    // A byte 10xxxxxx is not the first of its character.
    while (end > 0 && ((bytes[end] ?? 0) & 0xc0) === 0x80) {
        end -= 1;
    }
    return bytes.toString("utf8", 0, end).toWellFormed();
}
